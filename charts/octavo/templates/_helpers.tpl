{{- define "octavo.labels" -}}
app.kubernetes.io/name: octavo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Name of everything that the chart makes; cluster-scoped objects add the namespace. */}}
{{- define "octavo.name" -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "octavo.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "octavo.name" .) }}
{{- end }}

{{- /* What the operator may do where it serves. No Secrets, no exec, no wildcards, no deletion but of what a setting that was taken away leaves. */}}
{{- define "octavo.rules" -}}
- apiGroups: [serving.octavo.dev]
  resources: [inferenceservices]
  verbs: [list, watch]
- apiGroups: [serving.octavo.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
# Children block a foreground deletion of their owner, which admission allows only to those who may do this.
- apiGroups: [serving.octavo.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
# A service has a ConfigMap for each chat template that its pods may still read; it deletes those that it owns itself.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
# Without podMonitors.install, those of before are removed.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [{{ if .Values.podMonitors.install }}get, create, patch, {{ end }}list, watch, delete]
# Which pods are of the newest generation is told by ReplicaSets.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- if .Values.evictAfterGpuFaults }}
# A pod that keeps a broken accelerator is evicted, within its budgets; pods are not deleted.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
{{- end }}
# Why a pod's volumes do not come is told by Events alone; they are listed for such a pod. Transitions of services are told by Events.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}

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

{{- /* What the operator may do where it serves. No Secrets, no exec, no wildcards, no deletion. */}}
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
  resources: [services, serviceaccounts, persistentvolumeclaims, configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
{{- if .Values.podMonitors.install }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch]
{{- end }}
# Which pods are of the newest generation is told by ReplicaSets.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Why a pod's volumes do not come is told by Events alone; they are listed for such a pod. Transitions of services are told by Events.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}

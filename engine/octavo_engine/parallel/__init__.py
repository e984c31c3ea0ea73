"""Tensor parallelism: several ranks, one process each, that hold shares of one model.

  shares          which rows or columns of each matrix a rank keeps
  group           what layers ask of the other ranks; gloo_group, nccl_group: over CPUs, over GPUs
  meeting         where ranks that load longer than others are waited for
  on_device       a rank's runner on its own GPU, whichever thread calls
  setup           which rank this process is, from the standard variables
  wire, plan      what rank 0 and the others say to each other; the running hash of all steps
  driver          rank 0's side: starts the ranks, loads its own share
  runner          a `Runner` that hands each step to all ranks
  watchdog        notices a rank that ends, is silent or differs
  rank_process    the main program of the other ranks

Every decision is made once, by the scheduler beside rank 0; a rank runs what it is told.
"""

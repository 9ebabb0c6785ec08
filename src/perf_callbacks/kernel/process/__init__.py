"""The process and its machine: one owner for each thing that a process has once."""

# who.sh WHO COMMAND...: runs a command that has these rights, as far as the caller has them.
user="setpriv --reuid=54321 --regid=54321 --clear-groups"
root() { "$@"; }
nobody() { $user --inh-caps=-all "$@"; }
with_bpf() { $user --inh-caps=-all,+bpf --ambient-caps=-all,+bpf "$@"; }
with_perfmon() { $user --inh-caps=-all,+perfmon --ambient-caps=-all,+perfmon "$@"; }
with_both() { $user --inh-caps=-all,+bpf,+perfmon --ambient-caps=-all,+bpf,+perfmon "$@"; }
with_net() { $user --inh-caps=-all,+bpf,+net_admin --ambient-caps=-all,+bpf,+net_admin "$@"; }
with_admin() { $user --inh-caps=-all,+sys_admin --ambient-caps=-all,+sys_admin "$@"; }
bare_root() { setpriv --inh-caps=-all --bounding-set=-all "$@"; }
root_of_a_namespace() { unshare -U -r "$@"; }
user_in_a_namespace() { nobody unshare -U -r "$@"; }
"$@"

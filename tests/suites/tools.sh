# Small programs in pipelines: tar, compressors, sqlite, ssh keys, openssl, awk, xargs -P, flock, timeout, dd, rsync.
# needs: tar gzip xz sqlite3 ssh-keygen openssl awk xargs flock timeout
mkdir in; for i in $(seq 300); do seq $i $((i * 20)) >in/$i; done
for z in gzip bzip2 xz "xz -T2" "zstd -q"; do command -v ${z%% *} >/dev/null || continue
	tar -C in --sort=name --mtime=@0 --owner=0 --group=0 -cf - . | $z | tee t >/dev/null; $z -dc <t | tar -xf - -C "$(mkdir -p out.${z%% *}; echo out.${z%% *})"; diff -r in out.${z%% *} && echo "$z: same"; done
tar -C in -czf x.tgz . && tar -tzf x.tgz | wc -l
sqlite3 db 'pragma journal_mode=wal; create table t(a integer primary key, b text);' 'with recursive c(x) as (select 1 union all select x+1 from c where x<50000) insert into t select x, hex(x) from c;' 'create index i on t(b); select count(*), sum(a) from t; pragma integrity_check; vacuum;'
for i in 1 2 3 4; do (for k in $(seq 20); do sqlite3 db "pragma busy_timeout=20000; begin immediate; update t set a=-a where a=$k; update t set a=-a where a=-$k; commit;" >/dev/null || echo "sqlite: failed"; done) & done; wait
sqlite3 db 'select sum(a) from t; pragma integrity_check;'
for type in rsa ed25519 ecdsa; do ssh-keygen -q -t $type -N '' -f key.$type; ssh-keygen -y -f key.$type | cut -d' ' -f1; echo data >d; rm -f d.sig; ssh-keygen -q -Y sign -f key.$type -n x d 2>/dev/null; ssh-keygen -Y check-novalidate -n x -s d.sig <d >/dev/null; echo "signature: exit code $?"; done
eval "$(ssh-agent -a $PWD/agent)" >/dev/null; ssh-add -q key.rsa key.ed25519; ssh-add -l | wc -l; ssh-agent -k >/dev/null
openssl genrsa 2048 2>/dev/null | openssl rsa -check -noout 2>&1
seq 200 | xargs -P 8 -n 1 sh -c 'echo $(( $0 * 2 ))' | sort -n | sha256sum
for i in 1 2 3 4 5; do (for k in $(seq 20); do flock lock sh -c 'n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n'; done) & done; wait; cat n
timeout 0.3 sleep 10; echo "timeout: exit code $?"; timeout -s KILL 0.3 sleep 10; echo "timeout -s KILL: exit code $?"; timeout -k 0.2 0.2 sh -c 'trap "" TERM; while :; do sleep 0.05; done'; echo "timeout -k: exit code $?"
yes | head -1000000 | sha256sum; dd if=/dev/zero bs=4096 count=20000 status=none | sha256sum; seq 100000 | sort -R --random-source=/dev/zero | sort -n | sha256sum
mkfifo p; (cat p & seq 10 >p; wait) | tail -1; (ulimit -v 500000; bash -c 'echo limited'); (ulimit -n 10; bash -c 'exec 3</dev/null 4</dev/null; echo files'); (ulimit -s 256; sh -c 'echo small stack'); (ulimit -f 1; head -c 100000 /dev/zero >big; echo "ulimit -f: exit code $?"); (ulimit -t 1; sh -c 'while :; do :; done'; echo "ulimit -t: exit code $?") 2>/dev/null
nohup setsid sh -c 'echo apart' </dev/null 2>/dev/null; script -qc 'stty size; tty | cut -c1-8' /dev/null </dev/null 2>&1 | tr -d '\r' | head -3
env -i /bin/sh -c 'echo $PATH'; unshare -Urm sh -c 'id -u; mount -t tmpfs t /mnt && df --output=fstype /mnt | tail -1' 2>&1; unshare -Upf --mount-proc sh -c 'echo pid $$; ls /proc | grep -c "^[0-9]"' 2>&1; unshare -n sh -c 'ls /sys/class/net | wc -l'; chroot / /bin/echo chroot; nice -n 3 nice; taskset -c 0 nproc; prlimit --nproc=unlimited true; setarch -R sh -c 'echo no random addresses'

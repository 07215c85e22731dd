# A redis server: benchmark, snapshots by fork, the append-only file and its rewrite, reload, threads.
# needs: redis-server redis-cli redis-benchmark
redis-server --port 0 --unixsocket $PWD/s --dir $PWD --appendonly yes --save '' --io-threads 2 --io-threads-do-reads yes --enable-debug-command yes >log 2>&1 &
server=$!
cli() { redis-cli -s $PWD/s "$@"; }
until cli ping >/dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.1; done
wait_for() { until cli info persistence | tr -d '\r' | grep -q "$1"; do sleep 0.05; done; }
redis-benchmark -s $PWD/s -n 20000 -c 20 -r 1000 -q 2>&1 | tr '\r' '\n' | grep -o '^[A-Z].*requests per second' | sed 's/: .*//' | sort -u
redis-benchmark -s $PWD/s -n 50000 -c 20 -P 16 --threads 2 -t set,get -q 2>&1 | tr '\r' '\n' | grep -o '^[A-Z].*requests per second' | sed 's/: .*//' | sort -u
cli flushall
for i in 1 2 3; do
	cli debug populate 20000 "k$i" 100
	cli eval 'for i=1,5000 do redis.call("hset","h'$i'",i,i*i) redis.call("zadd","z'$i'",i,i) redis.call("rpush","l'$i'",i) end return redis.status_reply("filled")' 0
	before=$(cli debug digest)
	cli bgsave; wait_for rdb_bgsave_in_progress:0
	cli bgrewriteaof >/dev/null; wait_for aof_rewrite_in_progress:0
	cli info persistence | tr -d '\r' | grep -E '^(rdb_last_bgsave_status|aof_last_bgrewrite_status|aof_last_write_status)'
	cli debug reload
	[ "$before" = "$(cli debug digest)" ] && echo "same after a reload"
	cli debug loadaof
	[ "$before" = "$(cli debug digest)" ] && echo "same after a load of the append-only file"
done
cli dbsize
cli blpop nothing 0.2
cli debug sleep 0.1
redis-check-rdb dump.rdb | grep -cE 'RDB looks OK'
redis-check-aof appendonlydir/*.manifest | tail -1 | sed 's/.* is/is/'
cli shutdown
wait $server; echo "server: exit code $?"
grep -iE 'crash|bug report|signal:|warning: .*mem' log | head

# nginx with two workers under wrk: reload, reopening of logs, new binary's start, graceful end.
# needs: /usr/sbin/nginx wrk curl
mkdir -p www logs; head -c 100000 /dev/zero >www/big; echo hello >www/small
chmod 755 . www; chmod 644 www/*
cat >nginx.conf <<C
worker_processes 2; pid $PWD/nginx.pid; error_log $PWD/error.log notice; daemon on; user www-data;
events { worker_connections 512; }
http { access_log $PWD/access.log; sendfile on; aio threads; client_body_temp_path $PWD/b; proxy_temp_path $PWD/p; fastcgi_temp_path $PWD/f; uwsgi_temp_path $PWD/u; scgi_temp_path $PWD/s;
server { listen unix:$PWD/back; root $PWD/www; }
server { listen 127.0.0.1:18086; root $PWD/www; location /proxy/ { proxy_pass http://unix:$PWD/back:/; } } }
C
nginx=/usr/sbin/nginx
$nginx -p $PWD -c $PWD/nginx.conf -t 2>&1 | grep -o 'test is successful'
$nginx -p $PWD -c $PWD/nginx.conf; echo "start: exit code $?"
load() { wrk -t1 -c20 -d3 http://127.0.0.1:18086/$1 | grep -E 'Non-2xx|Socket errors' || echo "$1: no error"; }
load small; load big; load proxy/big
hups() { wrk -t1 -c20 -d3 http://127.0.0.1:18086/small | sed -n "s/.*Non-2xx/Non-2xx/p; s/read [0-9]*,//; /Socket errors/p" | grep -v "connect 0,  write 0, timeout 0"; echo "reloaded"; }
hups &
for i in 1 2 3; do sleep 0.5; kill -HUP $(cat nginx.pid); done
wait %1 2>/dev/null; wait
kill -USR1 $(cat nginx.pid); sleep 0.3
curl -s http://127.0.0.1:18086/small; curl -s http://127.0.0.1:18086/proxy/big | wc -c; curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:18086/none
# A new binary takes the sockets over, the old one goes.
old=$(cat nginx.pid)
kill -USR2 $old; for i in $(seq 50); do [ -s nginx.pid.oldbin ] && [ -s nginx.pid ] && break; sleep 0.1; done; sleep 0.5
kill -QUIT $old; while kill -0 $old 2>/dev/null; do sleep 0.1; done
curl -s http://127.0.0.1:18086/small
new=$(cat nginx.pid); [ "$new" != "$old" ] && echo "taken over"
load small
kill -QUIT $new; for i in $(seq 100); do kill -0 $new 2>/dev/null || break; sleep 0.1; done
[ -e nginx.pid ] || echo "ended gracefully"
grep -E '\[(alert|emerg|crit|error)\]' error.log | grep -v 'none" failed' | sed 's/^[^]]*\]//; s/[0-9]\+/N/g' | sort | uniq -c

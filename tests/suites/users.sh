# Other users, set-uid programs across exec, and debuggers at work on a traced process.
# needs: su sudo ping gdb strace setpriv
as() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }
su nobody -s /bin/sh -c 'id -un; ls / | wc -l; echo $PPID | grep -c .'; echo "su: exit code $?"
sudo -n -u nobody id -un; echo "sudo: exit code $?"
as id -un; as ping -c 1 -W 2 127.0.0.1 | grep -o '1 received'; echo "ping: exit code $?"
as sh -c 'sudo -n true 2>&1 | head -1'
as sh -c 'echo | su root -c id 2>&1 | tail -1'
as mount 2>&1 | wc -l | grep -c '[1-9]'
cp /usr/bin/id suid; chown nobody suid; chmod 4755 suid; ./suid -un; as ./suid -u; chown root suid; chmod 4755 suid; as ./suid | grep -o 'euid=0(root)'
as sh -c 'passwd -S nobody 2>&1 | cut -d" " -f1,2'
cp /bin/sh cap 2>/dev/null; setcap cap_net_raw+ep cap 2>/dev/null && as ./cap -c 'grep CapEff /proc/self/status'
setpriv --no-new-privs sh -c 'grep NoNewPrivs /proc/self/status'
chmod 711 suid; as ./suid -u
cat >t.c <<'C'
#include <stdio.h>
#include <unistd.h>
#include <pthread.h>
static volatile int go; static int count;
int step(int n) { count += n; return getppid() ? n + 1 : 0; }
static void *loop(void *p) { (void)p; while (!go) usleep(1000); return 0; }
int main(void) { pthread_t t[3]; for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, loop, 0); for (int i = 0; i < 5; i++) step(i); for (int i = 0; i < 30000 && !go; i++) usleep(1000); go = 1; for (int i = 0; i < 3; i++) pthread_join(t[i], 0); printf("count %d\n", count); return 0; }
C
gcc -g -pthread t.c -o t
gdb -q -batch -ex 'break step' -ex run -ex bt -ex 'continue 2' -ex 'finish' -ex 'info threads' -ex 'kill' ./t 2>&1 | sed -E 's/0x[0-9a-f]+/X/g; s/(Thread|LWP|process) [0-9]+/\1 N/g' | grep -vE '^(warning|\[New|\[Thread|Using|Download|$)' | cut -c1-100
gdb -q -batch -ex 'catch syscall getppid' -ex run -ex 'continue' -ex 'kill' ./t 2>&1 | grep -oE 'Catchpoint 1 \((call to|returned from) syscall [a-z]+' 
./t >out & sleep 0.5; gdb -q -batch -p $! -ex 'info threads' -ex 'set var go = 1' -ex detach 2>&1 | grep -c 'Thread 0x'; wait $!; echo "after gdb: exit code $?"; cat out
strace -f -o log ./t 2>&1 >out & sleep 0.7; kill -TERM $(pgrep -P $! -x t) 2>/dev/null; wait; grep -v resumed log | grep -c getppid; grep -v resumed log | grep -cE "clone3?\("
strace -c -f -o log sh -c 'ls / >/dev/null'; grep -qw execve log && echo "strace -c: has execve"
./t >out & sleep 0.4; timeout -s INT 1 strace -f -o log -p $!; grep -c nanosleep log | sed 's/[1-9][0-9]*/some/'; kill $!; wait $!; echo "after strace: exit code $?"

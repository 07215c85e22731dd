# Static and musl programs.
# needs: musl-gcc busybox $SOURCES/lua/src/lua.c (apt-get source lua5.4)
cp -r $SOURCES/lua l; cd l/src
echo '#define DEB_HOST_MULTIARCH "x86_64-linux-gnu"' >lua5.4-deb-multiarch.h
for options in "-static" "" "-static-pie -fPIE"; do
	musl-gcc -O1 $options -DLUA_USE_POSIX -DLUA_COMPAT_5_3 -o ../../lua $(ls l*.c | grep -v luac.c) -lm 2>/dev/null || { echo "no build with $options"; continue; }
	../../lua -e 'for i=1,5 do local p=io.popen("echo "..i) print(p:read("a")) print(p:close()) end local f=os.tmpname() local h=io.open(f,"w") h:write(("x"):rep(100000)) h:close() print(#io.open(f):read("a")) os.remove(f) print(os.execute("exit 3")) print(pcall(function() local function r() return 1+r() end return r() end)) print(os.execute("kill -9 $$"))'; echo "lua $options: exit code $?"
done
cd ../..
cat >t.c <<'C'
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ; static _Atomic int ticks; static void tick(int s) { (void)s; ticks++; }
static void *work(void *p) { for (int i = 0; i < 2000; i++) getppid(); return p; }
int main(void) { struct sigaction a = { .sa_handler = tick }; sigaction(SIGALRM, &a, 0); ualarm(1000, 1000);
 for (int r = 0; r < 200; r++) { pthread_t t[4]; for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, work, 0); for (int i = 0; i < 4; i++) pthread_join(t[i], 0); }
 int bad = 0; for (int i = 0; i < 100; i++) { pid_t p; char *v[] = { "true", 0 }; int s; if (posix_spawn(&p, "/bin/true", 0, 0, v, environ)) bad++; else { while (waitpid(p, &s, 0) < 0); bad += s != 0; } }
 ualarm(0, 0); printf("bad %d, ticks %d\n", bad, ticks > 10); return 0; }
C
for options in "-static" "" "-static-pie -fPIE"; do musl-gcc -O2 $options t.c -o t && ./t; echo "t $options: exit code $?"; gcc -O2 $options -pthread t.c -o t && ./t; echo "t $options (glibc): exit code $?"; done
busybox sh -c 'for i in 1 2 3; do echo $i | busybox cat; done; busybox ls / | busybox wc -l; busybox seq 1000 | busybox md5sum; (busybox sleep 0.1 & wait); busybox tar -cf - /etc/hostname 2>/dev/null | busybox tar -tf -'; echo "busybox: exit code $?"

# configure, make -j2 and make check of a C project: a shell, a compiler and many short processes.
# needs: gcc g++ make $SOURCES/zlib/configure (apt-get source zlib)
cp -r $SOURCES/zlib z; cd z
(./configure; echo "configure: exit code $?") 2>&1 | sed 's/\(took\|time\).*//'
make -j2 >make.log 2>&1; echo "make: exit code $?"
make test 2>&1 | grep -E 'OK|FAIL|error'
sha256sum *.o libz.a 2>/dev/null | sort -k2
cd ..
cat >x.cpp <<'C'
#include <iostream>
#include <regex>
#include <map>
#include <thread>
#include <stdexcept>
int main() { int n = 0; std::thread t([&] { for (int i = 0; i < 1000; i++) try { throw std::runtime_error("x"); } catch (std::exception &) { n++; } }); t.join(); std::cout << n << std::regex_match("abc", std::regex("a.c")) << "\n"; }
C
g++ -O2 -flto -pipe -pthread x.cpp -o x && ./x; echo "g++: exit code $?"

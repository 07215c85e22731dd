# The tests of Go's packages that meet the kernel.
# needs: /usr/local/go/bin/go
export GOFLAGS=-count=1 GOTOOLCHAIN=local PATH=/usr/local/go/bin:$PATH HOME=$PWD
# Built once, outside of what is compared.
here=${SOURCES:-$PWD}
for package in os os/exec os/signal syscall net runtime/pprof; do
	name=${package//\//_}.test
	[ -x $here/$name ] || (cd /usr/local/go/src/$package && go test -c -o $here/$name) || echo "$package cannot be built"
	[ -x $here/$name ] || continue
	(cd /usr/local/go/src/$package && timeout 600 $here/$name -test.v -test.short) >$name.log 2>&1
	echo "$package: exit code $?"
	grep -oE -- '--- (PASS|FAIL|SKIP): [^ ]+' $name.log | sort
done

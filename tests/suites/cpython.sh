# CPython's own tests of what leans hardest on the kernel.
# needs: /usr/bin/python3.11 /usr/lib/python3.11/test/test_os.py (libpython3.11-testsuite)
# (VSOCK: hangs natively where the host has no such device.)
for suite in test_os test_posix test_signal test_subprocess test_threading test_socket test_faulthandler test_mmap test_select test_epoll; do
	timeout 600 /usr/bin/python3.11 -m test -v -i '*VSOCK*' $suite >$suite.log 2>&1
	echo "$suite: exit code $?"
	# Other output may stand between a test's name and its result.
	grep -oE '^(FAIL|ERROR): .*|^test\w* \(test\.[^)]*\)|(skipped .*|ok|FAIL|ERROR|expected failure)$|^Ran [0-9]+ tests' $suite.log | sort | uniq -c
done

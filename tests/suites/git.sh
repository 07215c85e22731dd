# git: many commits, branches, merge, rebase, repack, gc, fsck, clone over a pipe and by hard links, bisect.
# needs: git
export HOME=$PWD GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1
git config --global user.name n; git config --global user.email e@e; git config --global init.defaultBranch main; git config --global gc.auto 0
git init -q a; cd a
for i in $(seq 60); do mkdir -p d$((i % 7)); seq $i $((i * 50)) >d$((i % 7))/f$i; git add -A; git commit -q -m "c$i"; done
git checkout -q -b side HEAD~20; for i in 1 2 3; do echo s$i >s$i; git add s$i; git commit -q -m "s$i"; done
git rebase -q main; echo "rebase: exit code $?"; git checkout -q main; git merge -q --no-ff -m merge side; echo "merge: exit code $?"
git rev-parse HEAD; git gc -q --aggressive --prune=now; echo "gc: exit code $?"; git fsck --strict --full 2>&1; echo "fsck: exit code $?"
git count-objects -v | grep -vE 'size'
cd ..; git clone -q --no-local a b; echo "clone: exit code $?"; git clone -q a c; git -C b log --oneline | sha256sum; git -C c status --short; git -C b bundle create -q ../x HEAD main; git -C b bundle verify ../x 2>&1 | tail -1
cd c; git bisect start -q HEAD HEAD~30 2>&1 | tail -1; git bisect run sh -c '! test -e d3/f45' 2>&1 | tail -3; git archive HEAD | sha256sum; git grep -c 77 HEAD | sha256sum

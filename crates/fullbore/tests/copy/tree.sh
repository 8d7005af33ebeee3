#!/bin/bash
# tree.sh DIR: makes a tree with one of everything that a copy keeps. Needs root.
set -euo pipefail
rm -rf "$1"
mkdir -p "$1"/a/b/c "$1"/{empty,ro,setgid}
cd "$1"

# Sizes around the limits of records and blocks.
echo hello > a/hello
: > a/zero
head -c 300000 /dev/urandom > a/b/mid
head -c 5500000 /dev/urandom > big
head -c 262144 /dev/urandom > edge
head -c 1048576 /dev/urandom > onemib
head -c 1048577 /dev/urandom > onemib1
for i in $(seq 300); do echo "$i" > "a/b/c/f$i"; done

# Holes.
truncate -s 50M sparse
printf x | dd of=sparse bs=1 seek=20000000 conv=notrunc status=none
dd if=/dev/urandom of=sparse bs=4096 count=3 seek=5000 conv=notrunc status=none
truncate -s 100000 smallsparse
printf y | dd of=smallsparse bs=1 seek=50000 conv=notrunc status=none
truncate -s 10M allhole

# Links of both kinds, and everything that is no file.
ln -s /etc/passwd abs
ln -s ../nowhere a/dangling
ln -s a/b dirlink
ln a/hello a/b/hello2
ln a/hello hello3
ln big a/biglink
ln -P dirlink a/dirlink2
mkfifo a/fifo
mknod a/null c 1 3
mknod a/blk b 7 200
perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("a/sock")) or die $!'

# Names.
printf x > $'caf\xe9'
printf x > $'new\nline'
printf x > 'with space'
printf x > "$(printf 'x%.0s' {1..255})"

# Permissions, owners, attributes, ACLs, times.
chmod 4755 a/hello
chmod 000 edge
chmod 0640 onemib
chown 1234:4321 onemib
chown 33:33 a/b/mid
chown -h 55:66 abs
chgrp 100 setgid
chmod 2755 setgid
chmod 1777 empty
setfattr -n user.test -v 'value one' a/zero
setfattr -n user.dir -v d a/b
setfattr -n trusted.t -v z big
setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 a/b/mid
setfacl -m u:33:rw a/zero
setfacl -d -m u:33:rwx setgid
mkdir setgid/inner
echo i > setgid/inner/f
setfacl -b setgid/inner/f
touch -d '1960-01-01 00:00:00.123456789' a/b/c/f1
touch -d '2030-01-01 12:00:00.000000001' a/b/c/f2
touch -h -d '2001-02-03 04:05:06.7' abs dirlink
chmod 0555 ro
touch -d '2010-10-10 10:10:10.5' a a/b ro empty .

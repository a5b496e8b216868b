#!/bin/busybox sh
# The first program in a machine of tests/kernels, in the initramfs: mounts the images, which are in memory, and becomes
# /vm-main in their root.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /lib/m/*; do insmod "$module" || echo "machine: cannot load $module"; done
mount -t squashfs -o ro,loop /images/root /lower
mount -t squashfs -o ro,loop /images/product /product
mount -t tmpfs -o size=90% tmpfs /upper
mkdir /upper/new /upper/new.work /upper/product /upper/product.work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/new,workdir=/upper/new.work overlay /new || poweroff -f
mkdir -p /new/usr/lib/modules /new/opt/cni /new/results /new/product
mount -t squashfs -o ro,loop /images/modules /new/usr/lib/modules
mount -t overlay -o lowerdir=/product,upperdir=/upper/product,workdir=/upper/product.work overlay /new/product
ln -s /product/dist/bin /new/opt/cni/bin
cp /images/command /new/vm-command
cp /images/main /new/vm-main
for each in proc sys dev; do mount --move /$each /new/$each; done
exec switch_root /new /bin/bash /vm-main # it removes the images' names; their loop devices keep them

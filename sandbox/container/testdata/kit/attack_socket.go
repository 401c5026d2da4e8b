package main

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

func unixSocket(args []string) (string, error) {
	c, err := net.DialTimeout("unix", args[0], 5*time.Second)
	if err != nil {
		return "", err
	}
	return "", c.Close()
}

func socketOf(args []string) (string, error) {
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(args[i])
	}
	fd, err := syscall.Socket(n[0], n[1], n[2])
	if err != nil {
		return "", err
	}
	return "", syscall.Close(fd)
}

// netlink tries the families that are not about routes.
func netlink([]string) (string, error) {
	var errs []error
	for _, family := range []int{syscall.NETLINK_NETFILTER, syscall.NETLINK_AUDIT, syscall.NETLINK_KOBJECT_UEVENT, syscall.NETLINK_GENERIC, syscall.NETLINK_XFRM} {
		fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, family)
		if err == nil {
			return strconv.Itoa(family), syscall.Close(fd)
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// interfaceDown changes the own loopback, for which it takes a capability.
func interfaceDown([]string) (string, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return "", err
	}
	defer syscall.Close(fd)
	request := struct {
		name [16]byte
		mtu  int32
		_    [20]byte
	}{mtu: 1400}
	copy(request.name[:], "lo")
	return kernelCall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFMTU, uintptr(unsafe.Pointer(&request)), 0)
}

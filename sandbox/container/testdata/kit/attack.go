package main

import (
	"errors"
)

// attacks each try one thing that no guest may do. What works returns no
// error; the words that it returns are its proof, where the attacker has one.
var attacks = map[string]func(args []string) (string, error){
	"attack host file": hostFile, "attack memory": foreignMemory, "attack sysctl": sysctl, "attack core pattern": corePattern,
	"attack release agent": releaseAgent, "attack mount": mountTmpfs, "attack remount": remount, "attack ptrace": ptrace,
	"attack device": device, "attack memory device": memoryDevice, "attack kernel log": kernelLog, "attack keyring": keyring,
	"attack unix socket": unixSocket, "attack netlink": netlink, "attack interface": interfaceDown,
	"attack socket": socketOf, "attack user namespace": userNamespace, "attack hard link": hardLink,
	"attack descriptors": descriptors, "attack set-uid": setUID, "attack set-uid file": setUIDFile,
	"attack core dump": coreDump, "attack clock": clock, "attack host name": hostName, "attack cgroup": ownCgroup,
	"inodes": inodes, "close stdin": closeStdin,
}

var errNothing = errors.New("nothing found")

package wasip1

// Rights of a descriptor, as the WASI preview 1 specification numbers them.
// Guests ask for more or fewer of them at path_open than they then use, and
// hosts do not hold them to it. What a guest gives up by fd_fdstat_set_rights
// is gone, for the descriptor and for what is opened below it.
const (
	rightDatasync   uint64 = 1 << 0
	rightRead       uint64 = 1 << 1
	rightSeek       uint64 = 1 << 2
	rightSetFlags   uint64 = 1 << 3
	rightSync       uint64 = 1 << 4
	rightTell       uint64 = 1 << 5
	rightWrite      uint64 = 1 << 6
	rightAdvise     uint64 = 1 << 7
	rightAllocate   uint64 = 1 << 8
	rightMkdir      uint64 = 1 << 9
	rightCreate     uint64 = 1 << 10
	rightLinkFrom   uint64 = 1 << 11
	rightLinkTo     uint64 = 1 << 12
	rightOpen       uint64 = 1 << 13
	rightReaddir    uint64 = 1 << 14
	rightReadlink   uint64 = 1 << 15
	rightRenameFrom uint64 = 1 << 16
	rightRenameTo   uint64 = 1 << 17
	rightPathStat   uint64 = 1 << 18
	rightPathSize   uint64 = 1 << 19
	rightPathTimes  uint64 = 1 << 20
	rightStat       uint64 = 1 << 21
	rightSize       uint64 = 1 << 22
	rightTimes      uint64 = 1 << 23
	rightSymlink    uint64 = 1 << 24
	rightRmdir      uint64 = 1 << 25
	rightUnlink     uint64 = 1 << 26
	rightPoll       uint64 = 1 << 27
	rightShutdown   uint64 = 1 << 28
	rightsKnown            = uint64(1)<<30 - 1
	rightsDir              = rightsKnown &^ (rightRead | rightSeek | rightTell | rightWrite | rightSize | rightPoll | rightShutdown)
	rightsStream           = rightSetFlags | rightStat | rightPoll
	rightsFileOnly         = rightsKnown &^ rightShutdown
)

// need is a right that a function wants of the descriptor in one argument.
type need struct {
	param int
	right uint64
}

// needs lists what a function wants.
func needs(name string) []need {
	one := map[string]uint64{
		"fd_advise": rightAdvise, "fd_allocate": rightAllocate, "fd_datasync": rightDatasync, "fd_fdstat_set_flags": rightSetFlags,
		"fd_filestat_get": rightStat, "fd_filestat_set_size": rightSize, "fd_filestat_set_times": rightTimes,
		"fd_read": rightRead, "fd_readdir": rightReaddir, "fd_seek": rightSeek, "fd_sync": rightSync, "fd_tell": rightTell, "fd_write": rightWrite,
		"fd_pread": rightRead | rightSeek, "fd_pwrite": rightWrite | rightSeek,
		"path_create_directory": rightMkdir, "path_filestat_get": rightPathStat, "path_filestat_set_times": rightPathTimes,
		"path_link": rightLinkFrom, "path_open": rightOpen, "path_readlink": rightReadlink, "path_remove_directory": rightRmdir,
		"path_rename": rightRenameFrom, "path_unlink_file": rightUnlink,
		"sock_recv": rightRead, "sock_send": rightWrite, "sock_shutdown": rightShutdown,
	}
	var list []need
	if r := one[name]; r != 0 {
		list = append(list, need{0, r})
	}
	switch name {
	case "path_link":
		list = append(list, need{4, rightLinkTo})
	case "path_rename":
		list = append(list, need{3, rightRenameTo})
	case "path_symlink":
		list = append(list, need{2, rightSymlink})
	}
	return list
}

// may checks what a call wants against what was given up.
func (s *System) may(list []need, p params) Errno {
	if !s.gaveUp {
		return Success
	}
	for _, n := range list {
		if f, e := s.get(p.fd(n.param)); e == Success && f.dropped&n.right != 0 {
			return ENOTCAPABLE
		}
	}
	return Success
}

func fdFdstatSetRights(s *System, _ memory, p params) Errno {
	f, e := s.get(p.fd(0))
	if e != Success {
		return e
	}
	base, inheriting := f.shownRights()
	if p.u64(1)&^base != 0 || p.u64(2)&^inheriting != 0 {
		return ENOTCAPABLE // rights are never gained
	}
	f.dropped |= base &^ p.u64(1)
	f.below |= inheriting &^ p.u64(2)
	s.gaveUp = true
	return Success
}

// shownRights are a descriptor's own rights and those of what it opens.
func (f *file) shownRights() (base, inheriting uint64) {
	base, inheriting = f.rights, f.rights
	if f.kind == typeDirectory {
		inheriting = rightsFileOnly
	}
	return base &^ f.dropped, inheriting &^ f.below
}

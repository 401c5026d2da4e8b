package wasm

import "golang.org/x/sys/unix"

// reservation is an address range without memory behind it until commit.
type reservation struct {
	mem []byte
}

func reserve(size uint64) reservation {
	mem, err := unix.Mmap(-1, 0, int(max(size, pageBytes)), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return reservation{} // commit refuses
	}
	return reservation{mem}
}

// commit makes the first size bytes usable, or returns nil.
func (r reservation) commit(size uint64) []byte {
	if size > uint64(len(r.mem)) || r.mem == nil {
		return nil
	}
	if size == 0 {
		return r.mem[:0]
	}
	if err := unix.Mprotect(r.mem[:size], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil
	}
	return r.mem[:size:size]
}

func (r reservation) release() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem) // cannot fail for a range of our own
	}
}

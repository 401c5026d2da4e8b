//go:build !linux

package wasm

// reservation relies on the system to give fresh pages on first use.
type reservation struct {
	mem []byte
}

func reserve(size uint64) reservation { return reservation{make([]byte, size)} }

func (r reservation) commit(size uint64) []byte {
	if size > uint64(len(r.mem)) {
		return nil
	}
	return r.mem[:size:size]
}

func (reservation) release() {}

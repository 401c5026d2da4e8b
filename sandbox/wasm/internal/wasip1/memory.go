package wasip1

import (
	"encoding/binary"

	"github.com/tetratelabs/wazero/api"
)

// maxIovecs bounds the vectors of one call, as Linux' IOV_MAX does.
const maxIovecs = 1024

// params are a host call's raw arguments. Compiled guests leave rubbish in the
// high half of 32-bit arguments, so they are only ever read through u32.
type params []uint64

func (p params) u32(i int) uint32 { return uint32(p[i]) }
func (p params) u64(i int) uint64 { return p[i] }
func (p params) fd(i int) int32   { return int32(uint32(p[i])) }

// memory is the guest's linear memory, where nothing is in bounds until proven.
type memory struct{ api.Memory }

// view returns the n bytes at off themselves, not a copy. They stay valid
// during a host call: nothing else runs in the guest meanwhile.
func (m memory) view(off, n uint32) ([]byte, Errno) {
	b, ok := m.Read(off, n)
	if !ok {
		return nil, EFAULT
	}
	return b, Success
}

// array views count elements of size bytes each, without overflow.
func (m memory) array(off, count, size uint32) ([]byte, Errno) {
	n := uint64(count) * uint64(size)
	if n > uint64(m.Size()) {
		return nil, EFAULT
	}
	return m.view(off, uint32(n))
}

func (m memory) putU32(off, v uint32) Errno {
	if !m.WriteUint32Le(off, v) {
		return EFAULT
	}
	return Success
}

func (m memory) putU64(off uint32, v uint64) Errno {
	if !m.WriteUint64Le(off, v) {
		return EFAULT
	}
	return Success
}

// canPutU32 proves that a result can be written before an effect happens.
func (m memory) canPutU32(off uint32) Errno {
	_, e := m.view(off, 4)
	return e
}

// iovecs reads an array of (pointer, length) pairs and views each buffer.
func (m memory) iovecs(off, count uint32) ([][]byte, Errno) {
	if count > maxIovecs {
		return nil, EINVAL
	}
	raw, e := m.array(off, count, 8)
	if e != Success {
		return nil, e
	}
	out := make([][]byte, 0, count)
	var total uint64
	for ; len(raw) >= 8; raw = raw[8:] {
		b, e := m.view(binary.LittleEndian.Uint32(raw), binary.LittleEndian.Uint32(raw[4:]))
		if e != Success {
			return nil, e
		}
		// Overlapping buffers could add up to more than a 32-bit count can say.
		if total += uint64(len(b)); total > 1<<31-1 {
			return nil, EINVAL
		}
		out = append(out, b)
	}
	return out, Success
}

func (m memory) canPutU64(off uint32) Errno {
	_, e := m.view(off, 8)
	return e
}

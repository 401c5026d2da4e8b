package wasm

import (
	"sync/atomic"

	"github.com/tetratelabs/wazero/experimental"
)

const pageBytes = 1 << 16

// memoryLimit gives one guest its linear memory and bounds it. The address
// range is reserved at once and its pages arrive as they are used, so growing
// never copies.
type memoryLimit struct {
	limit   uint64 // in bytes, whole pages
	peak    atomic.Uint64
	refused atomic.Bool // the last growth was refused
}

func newMemoryLimit(bytes int64) *memoryLimit {
	return &memoryLimit{limit: uint64(bytes) / pageBytes * pageBytes}
}

// Allocate implements experimental.MemoryAllocator.
func (l *memoryLimit) Allocate(_, most uint64) experimental.LinearMemory {
	size := min(most, l.limit)
	return &linearMemory{limit: l, pages: reserve(size), most: size}
}

// linearMemory is one reserved range; its first used bytes are the guest's.
type linearMemory struct {
	limit *memoryLimit
	pages reservation
	most  uint64
	freed bool
}

// Reallocate implements experimental.LinearMemory: nil refuses the growth.
func (m *linearMemory) Reallocate(size uint64) []byte {
	var b []byte
	if size <= m.most {
		b = m.pages.commit(size)
	}
	m.limit.refused.Store(b == nil)
	if b != nil {
		m.limit.peak.Store(max(m.limit.peak.Load(), size))
	}
	return b
}

// Free implements experimental.LinearMemory. wazero calls it when the guest is
// gone.
func (m *linearMemory) Free() {
	if !m.freed {
		m.freed = true
		m.pages.release()
	}
}

package wasip1

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"runtime"
	"time"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
)

// Clock identifiers. The processor-time clocks of the specification are not
// offered: the host has no such measure for one guest.
const (
	clockRealtime  = 0
	clockMonotonic = 1
)

func argsGet(s *System, m memory, p params) Errno {
	return putStrings(m, s.cfg.Args, p.u32(0), p.u32(1))
}
func argsSizesGet(s *System, m memory, p params) Errno { return putSizes(m, s.cfg.Args, p) }
func environGet(s *System, m memory, p params) Errno {
	return putStrings(m, s.cfg.Env, p.u32(0), p.u32(1))
}

func environSizesGet(s *System, m memory, p params) Errno {
	return putSizes(m, s.cfg.Env, p)
}

func putSizes(m memory, list []string, p params) Errno {
	var n uint32
	for _, v := range list {
		n += uint32(len(v)) + 1
	}
	if e := m.putU32(p.u32(0), uint32(len(list))); e != Success {
		return e
	}
	return m.putU32(p.u32(1), n)
}

// putStrings writes a table of pointers and the NUL-terminated strings that
// they point to.
func putStrings(m memory, list []string, table, data uint32) Errno {
	ptrs, e := m.array(table, uint32(len(list)), 4)
	if e != Success {
		return e
	}
	for i, v := range list {
		b, e := m.view(data, uint32(len(v))+1)
		if e != Success {
			return e
		}
		b[copy(b, v)] = 0
		binary.LittleEndian.PutUint32(ptrs[4*i:], data)
		data += uint32(len(b))
	}
	return Success
}

func clockResGet(_ *System, m memory, p params) Errno {
	if id := p.u32(0); id != clockRealtime && id != clockMonotonic {
		return ENOTSUP
	}
	return m.putU64(p.u32(1), 1)
}

// clockOffset keeps the monotonic clock off 0, which Go guests refuse.
const clockOffset = time.Second

func (s *System) monotonic() uint64 {
	return uint64(time.Since(s.began) + clockOffset)
}

func clockTimeGet(s *System, m memory, p params) Errno {
	switch p.u32(0) {
	case clockRealtime:
		return m.putU64(p.u32(2), uint64(time.Now().UnixNano()))
	case clockMonotonic:
		return m.putU64(p.u32(2), s.monotonic())
	}
	return ENOTSUP
}

func randomGet(s *System, m memory, p params) Errno {
	b, e := m.view(p.u32(0), p.u32(1))
	if e != Success {
		return e
	}
	for len(b) > 0 { // in pieces, so that a huge request can be stopped
		s.checkStop()
		n := min(len(b), 1<<20)
		_, _ = rand.Read(b[:n]) // never fails (it would end the process)
		b = b[n:]
	}
	return Success
}

func schedYield(*System, memory, params) Errno {
	runtime.Gosched()
	return Success
}

// procExit does not return: the panic unwinds the guest.
func procExit(ctx context.Context, _ api.Module, stack []uint64) {
	s := systemOf(ctx)
	s.checkStop()
	s.exited, s.code = true, params(stack).u32(0)
	panic(sys.NewExitError(s.code))
}

//go:build linux

package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Bounds of the protocol. Both sides enforce them.
const (
	protocolVersion = 3
	maxMessage      = 128 << 10 // bytes of one message
	maxFiles        = 64        // descriptors in one message
	maxArgs         = 1024
	maxEnv          = 1024
	maxArgEnvBytes  = 96 << 10 // of Args and Env together
	maxMounts       = 32
	maxOpenings     = 2048 // in one message: a policy of mode public takes hundreds
	maxPorts        = 256  // in one opening
	maxPath         = 4096
	maxName         = 128
	maxText         = 1024 // of an error or an exit's detail
	maxTiers        = 16
	maxDigests      = maxLayers + 2 // a manifest, its configuration and its layers
	maxList         = 128           // entries of one list reply
)

// errMalformed marks a message that is not what its kind says. The
// connection that it came on is closed.
var errMalformed = errors.New("malformed message")

// encoder appends fixed-width big-endian fields; there is one encoding for
// each value, so decoding and encoding again gives the same bytes.
type encoder struct{ b []byte }

func (e *encoder) u8(v uint8)   { e.b = append(e.b, v) }
func (e *encoder) u16(v uint16) { e.b = binary.BigEndian.AppendUint16(e.b, v) }
func (e *encoder) u32(v uint32) { e.b = binary.BigEndian.AppendUint32(e.b, v) }
func (e *encoder) i64(v int64)  { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }

func (e *encoder) bool(v bool) {
	if v {
		e.u8(1)
		return
	}
	e.u8(0)
}

func (e *encoder) bytes(v []byte) {
	e.u32(uint32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) str(v string) { e.bytes([]byte(v)) }

// decoder reads what encoder wrote. The first error sticks, and every later
// read gives a zero value.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
	}
	d.b = nil
}

// take returns the next n bytes, which alias the message.
func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if n > len(d.b) {
		d.fail("cut short")
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if p := d.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) i64() int64 {
	if p := d.take(8); p != nil {
		return int64(binary.BigEndian.Uint64(p))
	}
	return 0
}

func (d *decoder) bool() bool {
	v := d.u8()
	if v > 1 {
		d.fail("a flag of %d", v)
	}
	return v == 1
}

func (d *decoder) str(limit int) string {
	n := d.u32()
	if d.err == nil && uint64(n) > uint64(limit) {
		d.fail("a field of %d bytes, over %d", n, limit)
	}
	return string(d.take(int(n)))
}

// count reads how many elements follow, before any of them is allocated.
func (d *decoder) count(limit int) int {
	n := int(d.u16())
	if n > limit {
		d.fail("%d elements, over %d", n, limit)
		return 0
	}
	return n
}

// end refuses bytes that no field claimed.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes too many", len(d.b))
	}
	return d.err
}

//go:build linux

package engine

import (
	"math"
	"net/netip"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

func (*startMsg) kind() kind { return kindStart }
func (m *startMsg) encode(e *encoder) {
	s := &m.Spec
	e.str(s.Tenant)
	e.str(s.Name)
	encodeTier(e, s.Isolation)
	e.str(s.Image.Digest)
	encodeStrings(e, s.Args)
	encodeStrings(e, s.Env)
	e.str(s.Dir)
	e.u16(uint16(len(s.Mounts)))
	for _, mt := range s.Mounts {
		e.str(mt.Target)
		e.bool(mt.ReadWrite)
	}
	l := &s.Limits
	e.i64(l.MemoryBytes)
	e.i64(millis(l.CPUs))
	e.i64(l.PIDs)
	e.i64(int64(min(l.Files, math.MaxInt64)))
	e.i64(l.TmpBytes)
	e.i64(l.FileBytes)
	e.i64(int64(l.Wall))
	e.i64(int64(l.StopGrace))
	e.bool(m.Gateway)
	encodeOpenings(e, m.Open)
}

// millis sends cores as thousandths: an integer cannot be NaN or infinite.
func millis(cpus float64) int64 { return int64(math.Round(cpus * 1000)) }

func (m *startMsg) decode(d *decoder) {
	s := &m.Spec
	s.Tenant, s.Name = d.str(maxName), d.str(maxName)
	s.Isolation = decodeTier(d)
	s.Image.Digest = d.str(maxName)
	s.Args = decodeStrings(d, maxArgs)
	s.Env = decodeStrings(d, maxEnv)
	s.Dir = d.str(maxPath)
	for range d.count(maxMounts) {
		s.Mounts = append(s.Mounts, sandbox.Mount{Target: d.str(maxPath), ReadWrite: d.bool()})
	}
	l := &s.Limits
	l.MemoryBytes = d.i64()
	l.CPUs = d.cores()
	l.PIDs = d.i64()
	if f := d.i64(); f >= 0 {
		l.Files = uint64(f)
	} else {
		d.fail("a negative limit")
	}
	l.TmpBytes = d.i64()
	l.FileBytes = d.i64()
	l.Wall, l.StopGrace = time.Duration(d.i64()), time.Duration(d.i64())
	m.Gateway = d.bool()
	m.Open = decodeOpenings(d)
}

// cores reads thousandths of a core, within what Limits could ever allow.
func (d *decoder) cores() float64 {
	v := d.i64()
	if v < 0 || v > 1<<30 {
		d.fail("a cpu limit out of range")
		return 0
	}
	return float64(v) / 1000
}

func encodeStrings(e *encoder, list []string) {
	e.u16(uint16(len(list)))
	for _, s := range list {
		e.str(s)
	}
}

func decodeStrings(d *decoder, limit int) []string {
	var list []string
	for range d.count(limit) {
		list = append(list, d.str(maxArgEnvBytes))
	}
	return list
}

func encodeOpenings(e *encoder, list []container.Opening) {
	e.u16(uint16(len(list)))
	for _, o := range list {
		e.bytes(o.Prefix.Addr().AsSlice())
		e.u8(uint8(o.Prefix.Bits()))
		e.u16(uint16(len(o.Ports)))
		for _, p := range o.Ports {
			e.u16(p)
		}
		e.i64(int64(o.TTL))
	}
}

func decodeOpenings(d *decoder) []container.Opening {
	var list []container.Opening
	for range d.count(maxOpenings) {
		raw, bits := d.str(16), d.u8()
		addr, ok := netip.AddrFromSlice([]byte(raw))
		if !ok && d.err == nil {
			d.fail("an address of %d bytes", len(raw))
		}
		o := container.Opening{Prefix: netip.PrefixFrom(addr, int(bits))}
		if !o.Prefix.IsValid() {
			d.fail("a prefix of %d bits", bits)
		}
		for range d.count(maxPorts) {
			o.Ports = append(o.Ports, d.u16())
		}
		o.TTL = time.Duration(d.i64())
		list = append(list, o)
	}
	return list
}

package wasip1

import (
	"encoding/binary"
	"math"
	"time"
)

// Sizes and tags of poll_oneoff's records.
const (
	subSize    = 48
	eventSize  = 32
	eventClock = 0
	eventRead  = 1
	eventWrite = 2
	hangupFlag = 1
)

// subscription is one decoded entry. The guest's memory holds the entries and
// stays as it is during the call, so they are decoded again on each pass
// rather than kept.
type subscription struct {
	userdata uint64
	kind     uint8
	fd       int32
	clock    uint32
	timeout  uint64
	absolute bool
}

func decodeSub(b []byte) subscription {
	sub := subscription{userdata: binary.LittleEndian.Uint64(b), kind: b[8]}
	if sub.kind == eventClock {
		sub.clock = binary.LittleEndian.Uint32(b[16:])
		sub.timeout = binary.LittleEndian.Uint64(b[24:])
		sub.absolute = binary.LittleEndian.Uint16(b[40:])&1 != 0
	} else {
		sub.fd = int32(binary.LittleEndian.Uint32(b[16:]))
	}
	return sub
}

// pollOneoff waits until at least one subscription has an event, and reports
// all that have: pipes, sockets and clocks alike.
func pollOneoff(s *System, m memory, p params) Errno {
	count := p.u32(2)
	if count == 0 || count > maxPollSubs {
		return EINVAL
	}
	subs, e := m.array(p.u32(0), count, subSize)
	if e != Success {
		return e
	}
	events, e := m.array(p.u32(1), count, eventSize)
	if e != Success {
		return e
	}
	if e := m.canPutU32(p.u32(3)); e != Success {
		return e
	}
	// The records may overlap in a hostile guest: what was decoded is what
	// counts, and events are only written on the way out.
	began := time.Now()
	if !pollable(subs) {
		return EINVAL
	}
	found := s.found
	for {
		found = found[:0]
		var deadline time.Time
		for b := subs; len(b) > 0; b = b[subSize:] {
			ev, due, ok := s.check(decodeSub(b), began)
			if ok {
				found = append(found, ev)
			} else if !due.IsZero() && (deadline.IsZero() || due.Before(deadline)) {
				deadline = due
			}
		}
		if len(found) > 0 {
			break
		}
		s.wait(deadline)
	}
	s.found = found
	for i, ev := range found {
		copy(events[i*eventSize:], ev[:])
	}
	return m.putU32(p.u32(3), uint32(len(found)))
}

// pollable refuses entries of no known kind.
func pollable(subs []byte) bool {
	for b := subs; len(b) > 0; b = b[subSize:] {
		if b[8] > eventWrite {
			return false
		}
	}
	return true
}

// check says whether a subscription has its event; for a clock that has not,
// when it will.
func (s *System) check(sub subscription, began time.Time) (ev [eventSize]byte, due time.Time, ok bool) {
	binary.LittleEndian.PutUint64(ev[:], sub.userdata)
	ev[10] = sub.kind
	var e Errno
	if sub.kind == eventClock {
		if due, e = s.due(sub, began); e == Success && time.Now().Before(due) {
			return ev, due, false
		}
	} else {
		var n int
		var hangup bool
		if ok, n, hangup, e = s.ready(sub); e == Success && !ok {
			return ev, due, false
		}
		binary.LittleEndian.PutUint64(ev[16:], uint64(n))
		if hangup {
			ev[24] = hangupFlag
		}
	}
	binary.LittleEndian.PutUint16(ev[8:], uint16(e))
	return ev, time.Time{}, true
}

// due is when a clock subscription fires.
func (s *System) due(sub subscription, began time.Time) (time.Time, Errno) {
	at := int64(min(sub.timeout, math.MaxInt64))
	switch {
	case sub.clock != clockRealtime && sub.clock != clockMonotonic:
		return time.Time{}, EINVAL
	case !sub.absolute:
		// A duration over a century is for ever, and adding it must not wrap.
		return began.Add(min(time.Duration(at), 100*365*24*time.Hour)), Success
	case sub.clock == clockRealtime:
		return time.Unix(0, at), Success
	}
	return s.began.Add(time.Duration(at) - clockOffset), Success
}

// ready says whether a descriptor can be read or written without waiting.
func (s *System) ready(sub subscription) (ok bool, n int, hangup bool, e Errno) {
	f, e := s.get(sub.fd)
	switch {
	case e != Success:
		return false, 0, false, e
	case f.sock != nil:
		ok, n, hangup = f.sock.ready(sub.kind == eventWrite)
	case sub.kind == eventRead && f.in != nil:
		ok, n, hangup = f.in.readable()
	case sub.kind == eventWrite && f.out != nil:
		ok, n, hangup = f.out.writable()
	case f.isStream():
		return false, 0, false, EBADF // stdin for writing, or stdout for reading
	default:
		ok = true // files and folders never wait
	}
	return ok, n, hangup, Success
}

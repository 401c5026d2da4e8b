//go:build linux

package engine

import (
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// kind says what a message is. Requests come from the caller, replies from
// the engine.
type kind uint8

const (
	kindHello   kind = iota + 1
	kindHas          // -> answer
	kindImport       // -> pipe (one descriptor, to write the archive to), then done
	kindStart        // -> started (the sandbox's descriptors), then exited
	kindOpen         // -> done
	kindStop         // -> done: the stop has begun, the end comes as exited
	kindList         // -> listed
	kindMissing      // -> lacking
)

const (
	kindWelcome kind = iota + 0x81
	kindAnswer
	kindPipe
	kindDone
	kindStarted
	kindExited
	kindListed
	kindError
	kindLacking
)

// message is one packet's content.
type message interface {
	kind() kind
	encode(e *encoder)
	decode(d *decoder)
}

type (
	helloMsg   struct{ Version uint32 }
	hasMsg     struct{ Digest string }
	importMsg  struct{ Digest string }
	pipeMsg    struct{}
	doneMsg    struct{}
	answerMsg  struct{ Yes bool }
	welcomeMsg struct {
		Version uint32
		Engine  string
		Tiers   []sandbox.Isolation
	}
	startMsg struct {
		Spec    sandbox.Spec // Mounts without Source: the descriptors travel beside
		Gateway bool
		Open    []container.Opening
	}
	// startedMsg says which descriptors travel beside it: bit i of Present
	// stands for element i of fileSlots.
	startedMsg struct {
		ID      string
		Present uint8
	}
	exitedMsg struct{ Exit sandbox.Exit }
	openMsg   struct {
		Target uint32
		Open   []container.Opening
	}
	stopMsg struct {
		Target uint32
		Kill   bool
	}
	listMsg   struct{ After string }
	listedMsg struct {
		Entries []Entry
		More    bool
	}
	// missingMsg names blobs that an image is made of; lackingMsg those of them
	// that the engine has not got.
	missingMsg struct{ Digests []string }
	lackingMsg struct{ Digests []string }
	errorMsg   struct {
		Code       errorCode
		Tier       sandbox.Isolation
		Text, Next string
	}
)

// Entry is one running sandbox, as List reports it.
type Entry struct {
	ID, Tenant, Name string
	Isolation        sandbox.Isolation
	Owner            uint32
	Age              time.Duration
}

func newMessage(k kind) message {
	switch k {
	case kindHello:
		return &helloMsg{}
	case kindHas:
		return &hasMsg{}
	case kindImport:
		return &importMsg{}
	case kindStart:
		return &startMsg{}
	case kindOpen:
		return &openMsg{}
	case kindStop:
		return &stopMsg{}
	case kindList:
		return &listMsg{}
	case kindMissing:
		return &missingMsg{}
	case kindLacking:
		return &lackingMsg{}
	case kindWelcome:
		return &welcomeMsg{}
	case kindAnswer:
		return &answerMsg{}
	case kindPipe:
		return &pipeMsg{}
	case kindDone:
		return &doneMsg{}
	case kindStarted:
		return &startedMsg{}
	case kindExited:
		return &exitedMsg{}
	case kindListed:
		return &listedMsg{}
	case kindError:
		return &errorMsg{}
	}
	return nil
}

// marshal gives the packet: kind, request id, fields.
func marshal(id uint32, m message) []byte {
	e := &encoder{b: make([]byte, 0, 256)}
	e.u8(uint8(m.kind()))
	e.u32(id)
	m.encode(e)
	return e.b
}

// unmarshal reads one packet. Its errors wrap errMalformed.
func unmarshal(b []byte) (uint32, message, error) {
	d := &decoder{b: b}
	k, id := kind(d.u8()), d.u32()
	m := newMessage(k)
	if m == nil {
		d.fail("kind %d", k)
		return 0, nil, d.err
	}
	m.decode(d)
	if err := d.end(); err != nil {
		return 0, nil, err
	}
	return id, m, nil
}

func (*helloMsg) kind() kind           { return kindHello }
func (m *helloMsg) encode(e *encoder)  { e.u32(m.Version) }
func (m *helloMsg) decode(d *decoder)  { m.Version = d.u32() }
func (*hasMsg) kind() kind             { return kindHas }
func (m *hasMsg) encode(e *encoder)    { e.str(m.Digest) }
func (m *hasMsg) decode(d *decoder)    { m.Digest = d.str(maxName) }
func (*importMsg) kind() kind          { return kindImport }
func (m *importMsg) encode(e *encoder) { e.str(m.Digest) }
func (m *importMsg) decode(d *decoder) { m.Digest = d.str(maxName) }
func (*pipeMsg) kind() kind            { return kindPipe }
func (*pipeMsg) encode(*encoder)       {}
func (*pipeMsg) decode(*decoder)       {}
func (*doneMsg) kind() kind            { return kindDone }
func (*doneMsg) encode(*encoder)       {}
func (*doneMsg) decode(*decoder)       {}
func (*answerMsg) kind() kind          { return kindAnswer }
func (m *answerMsg) encode(e *encoder) { e.bool(m.Yes) }
func (m *answerMsg) decode(d *decoder) { m.Yes = d.bool() }

func (*welcomeMsg) kind() kind { return kindWelcome }
func (m *welcomeMsg) encode(e *encoder) {
	e.u32(m.Version)
	e.str(m.Engine)
	e.u16(uint16(len(m.Tiers)))
	for _, t := range m.Tiers {
		encodeTier(e, t)
	}
}

func (m *welcomeMsg) decode(d *decoder) {
	m.Version, m.Engine = d.u32(), d.str(maxName)
	for range d.count(maxTiers) {
		m.Tiers = append(m.Tiers, decodeTier(d))
	}
}

func encodeTier(e *encoder, t sandbox.Isolation) { e.u8(uint8(t)) }

func decodeTier(d *decoder) sandbox.Isolation { return sandbox.Isolation(d.u8()) }

func (*startedMsg) kind() kind          { return kindStarted }
func (m *startedMsg) encode(e *encoder) { e.str(m.ID); e.u8(m.Present) }
func (m *startedMsg) decode(d *decoder) { m.ID, m.Present = d.str(maxName), d.u8() }

func (*exitedMsg) kind() kind { return kindExited }
func (m *exitedMsg) encode(e *encoder) {
	x := &m.Exit
	for _, v := range []int64{int64(x.Cause), int64(x.Code), int64(x.Signal), x.PeakMemoryBytes, x.PeakPIDs, x.PeakTmpBytes} {
		e.i64(v)
	}
	e.str(x.Detail)
}

func (m *exitedMsg) decode(d *decoder) {
	m.Exit = sandbox.Exit{
		Cause: sandbox.Cause(d.i64()), Code: int(d.i64()), Signal: int(d.i64()),
		PeakMemoryBytes: d.i64(), PeakPIDs: d.i64(), PeakTmpBytes: d.i64(), Detail: d.str(maxText),
	}
}

func (*openMsg) kind() kind          { return kindOpen }
func (m *openMsg) encode(e *encoder) { e.u32(m.Target); encodeOpenings(e, m.Open) }
func (m *openMsg) decode(d *decoder) { m.Target, m.Open = d.u32(), decodeOpenings(d) }
func (*stopMsg) kind() kind          { return kindStop }
func (m *stopMsg) encode(e *encoder) { e.u32(m.Target); e.bool(m.Kill) }
func (m *stopMsg) decode(d *decoder) { m.Target, m.Kill = d.u32(), d.bool() }
func (*listMsg) kind() kind          { return kindList }
func (m *listMsg) encode(e *encoder) { e.str(m.After) }
func (m *listMsg) decode(d *decoder) { m.After = d.str(maxName) }

func (*listedMsg) kind() kind { return kindListed }
func (m *listedMsg) encode(e *encoder) {
	e.u16(uint16(len(m.Entries)))
	for _, x := range m.Entries {
		e.str(x.ID)
		e.str(x.Tenant)
		e.str(x.Name)
		encodeTier(e, x.Isolation)
		e.u32(x.Owner)
		e.i64(int64(x.Age))
	}
	e.bool(m.More)
}

func (m *listedMsg) decode(d *decoder) {
	for range d.count(maxList) {
		m.Entries = append(m.Entries, Entry{
			ID: d.str(maxName), Tenant: d.str(maxName), Name: d.str(maxName),
			Isolation: decodeTier(d), Owner: d.u32(), Age: time.Duration(d.i64()),
		})
	}
	m.More = d.bool()
}

func (*errorMsg) kind() kind { return kindError }
func (m *errorMsg) encode(e *encoder) {
	e.u8(uint8(m.Code))
	encodeTier(e, m.Tier)
	e.str(m.Text)
	e.str(m.Next)
}

func (m *errorMsg) decode(d *decoder) {
	m.Code = errorCode(d.u8())
	m.Tier = decodeTier(d)
	m.Text, m.Next = d.str(maxText), d.str(maxText)
}

func (*missingMsg) kind() kind          { return kindMissing }
func (m *missingMsg) encode(e *encoder) { encodeDigests(e, m.Digests) }
func (m *missingMsg) decode(d *decoder) { m.Digests = decodeDigests(d) }
func (*lackingMsg) kind() kind          { return kindLacking }
func (m *lackingMsg) encode(e *encoder) { encodeDigests(e, m.Digests) }
func (m *lackingMsg) decode(d *decoder) { m.Digests = decodeDigests(d) }

func encodeDigests(e *encoder, list []string) {
	e.u16(uint16(len(list)))
	for _, s := range list {
		e.str(s)
	}
}

func decodeDigests(d *decoder) []string {
	var list []string
	for range d.count(maxDigests) {
		list = append(list, d.str(maxName))
	}
	return list
}

// String names a kind for logs.
func (k kind) String() string {
	if m := newMessage(k); m != nil {
		return fmt.Sprintf("%T", m)[len("*engine."):]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

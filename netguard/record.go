package netguard

import "time"

// Event is the kind of a Record.
type Event string

// The events. Both lines of one connection carry the same ID; an attempt that
// was refused has a decision only.
const (
	EventDecision Event = "decision"
	EventClose    Event = "close"
)

// Via is the door through which an attempt came.
type Via string

// The doors.
const (
	ViaDial    Via = "dial"    // a host call of a guest, or the bridge
	ViaGateway Via = "gateway" // a connection taken at a container's gateway
	ViaDNS     Via = "dns"     // a look-up
	ViaHTTP    Via = "http"    // a request or a redirect hop of the HTTP client
)

// Record is one audit line. Host is what was asked for: a name, or a literal
// where the sandbox used one; an answer of a look-up appears only as Class.
type Record struct {
	ID       string        `json:"id"`
	Event    Event         `json:"event"`
	Time     time.Time     `json:"time"`
	Tenant   string        `json:"tenant,omitempty"`
	Sandbox  string        `json:"sandbox,omitempty"`
	InFlight []string      `json:"in_flight,omitempty"` // tool calls under way
	Via      Via           `json:"via"`
	Network  string        `json:"network"` // tcp, udp, icmp or ip
	Host     string        `json:"host"`    // cut to a bound
	Port     uint16        `json:"port,omitempty"`
	Class    string        `json:"class,omitempty"`
	Rule     string        `json:"rule,omitempty"`
	Allow    bool          `json:"allow"`
	Reason   Reason        `json:"reason,omitempty"`
	Up       int64         `json:"up,omitempty"`   // bytes sent, in a close line
	Down     int64         `json:"down,omitempty"` // bytes received, in a close line
	Duration time.Duration `json:"duration,omitempty"`
	// Suppressed counts refusals that were left out before this line: a flood
	// is counted, not written one by one.
	Suppressed int64 `json:"suppressed,omitempty"`
}

// maxRecorded bounds untrusted text in records and errors, in bytes.
const maxRecorded = 256

// cut bounds untrusted text.
func cut(s string) string {
	if len(s) > maxRecorded {
		return s[:maxRecorded]
	}
	return s
}

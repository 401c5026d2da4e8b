package config

import (
	"time"

	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Defaults of a Config.
const (
	DefaultListen = "127.0.0.1:8787"
	DefaultTenant = "local"
)

// Transport is how a server is spoken to.
type Transport string

// The transports. Only stdio servers run in a sandbox.
const (
	Stdio     Transport = "stdio"
	HTTP      Transport = "http" // Streamable HTTP
	SSE       Transport = "sse"  // the older HTTP+SSE; deprecated
	WebSocket Transport = "websocket"
)

// Config is one or more files, checked and merged.
type Config struct {
	// Listen is the host:port of the HTTP API.
	Listen string
	// Tenant names whose servers these are, in records.
	Tenant string
	// Servers are those to serve, in the order of the files. Their IDs differ
	// in more than case and punctuation, which names of tools may lose.
	Servers []Server
	// Outbound is what of an engine is published.
	Outbound Outbound
	// Clients are those that may call, and what each sees. Without any, whoever
	// may call at all sees everything.
	Clients []Client
	// InFlight bounds the calls under way in all servers together, beside one
	// for each; 0 is the bridge's default.
	InFlight int
	// EventResults has events show what tools answered, cut and without secrets.
	EventResults bool
	// Secrets are the values that were put in somewhere, each once, so that they
	// can be taken out of what is shown.
	Secrets []Secret
	// Warnings are remarks on files that are usable all the same.
	Warnings []strict.Fault
}

// Server is one MCP server.
type Server struct {
	// ID is its name; Label is what people see, the ID where none was given.
	ID, Label string
	Transport Transport

	// Command and Args start a stdio server, as a client's config has them.
	Command string
	Args    []string
	// Env is all that a stdio server's environment gets from here.
	Env []Var
	// Policy is never nil for a stdio server: without one it is the preset
	// none. Network servers have none.
	Policy *policies.Policy
	// Isolation is the tier that was asked for; 0 leaves it to the server's
	// kind and the policy. It satisfies the policy's minimum.
	Isolation sandbox.Isolation
	Mounts    []Mount

	// URL and Headers reach a network server.
	URL     string
	Headers []Var
	// AllowLocalEndpoint opens the URL's exact host and port where they are
	// local, and plaintext for them. See LocalEndpoint.
	AllowLocalEndpoint bool
	// OAuth says how to log in to a network server; nil is not at all.
	OAuth *OAuth

	// ToolsAllowlist and Include narrow the tools by name; nil means every
	// tool, an empty list none. What is not in the first must not be called,
	// what is not in the second is not shown.
	ToolsAllowlist, Include []string
	// Renames and Descriptions give tools other names and descriptions, by the
	// names that the server has for them.
	Renames, Descriptions map[string]string
	// Pin is strict, warn or off; Sharing is tenant, session or call. "" is the
	// bridge's default.
	Pin, Sharing string
	// IdleStop ends a sandbox that nobody called for that long; 0 never does.
	IdleStop time.Duration
	// CallTimeout bounds a call, its wait included; InFlight and Waiting bound
	// how many are under way and waiting. 0 is the bridge's default.
	CallTimeout       time.Duration
	InFlight, Waiting int
	// Warm is how many sandboxes of a stdio server are kept started for those
	// to come; 0 is none.
	Warm int
	// Required makes a failed start of this server one of the whole.
	Required bool
	// Autostart keeps it running from the start on.
	Autostart bool
	// Dir is the folder of the file that it was written in, where relative
	// paths begin.
	Dir string
}

// Mount shows one file or folder of the host to a stdio server.
type Mount struct {
	Source    string // absolute
	Target    string // absolute and clean, below /
	ReadWrite bool
}

// Options say where the values of secrets are looked up, and how policies are
// read.
type Options struct {
	// Policies reads the servers' policies; the zero value knows no registries.
	Policies policies.Loader
	// LookupEnv is os.LookupEnv unless given.
	LookupEnv func(name string) (string, bool)
}

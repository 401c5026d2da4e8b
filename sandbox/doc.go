// Package sandbox holds what every isolation tier has in common: what to run
// (Spec, Limits, Mount), how to run it (Runtime), what is running (Sandbox)
// and how it ended (Exit).
//
// It knows no runtime, no protocol and no policy: it imports the standard
// library alone, and it may never import netguard, mcpbridge, wazero or
// containerd.
package sandbox

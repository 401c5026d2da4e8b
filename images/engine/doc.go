// Package engine holds no code: its folder pins the programs that the engine
// process drives (containerd, its runc shim, runc and gVisor's runsc), each in
// a module of its own because their shared dependencies clash, and build.sh
// builds them. Nothing may ever import those modules, and no program is taken
// from anywhere but source that the Go checksum database vouches for.
package engine

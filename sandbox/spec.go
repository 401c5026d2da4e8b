package sandbox

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
)

// Spec says what one sandbox runs. It is data: a Runtime copies what it keeps.
type Spec struct {
	// Tenant and Name identify the sandbox in records and labels. Name is the
	// server's name; several sandboxes may share it.
	Tenant, Name string
	// Isolation is the tier that must run it. A Runtime that cannot give
	// exactly this tier refuses with ErrUnavailable.
	Isolation Isolation
	// Image is what to run.
	Image Image
	// Args is the whole argument vector, the program first.
	Args []string
	// Env is the whole environment as KEY=VALUE; nothing is inherited. Values
	// can be secrets: a Runtime never logs them.
	Env []string
	// Dir is the working directory inside the sandbox; empty means HOME.
	Dir string
	// Mounts is the allow-list of host folders and files.
	Mounts []Mount
	// Limits bounds the sandbox; zero fields take their defaults.
	Limits Limits
}

// Image is a sealed image or module. It is addressed by its content, so that
// running it needs no registry.
type Image struct {
	// Digest is sha256:<64 hex>: of the OCI manifest, or of the .wasm file.
	Digest string
	// Path is the OCI image layout folder that holds the image, or the .wasm
	// file. It is read by the caller's own rights, never by the engine's.
	Path string
}

// Mount is one host file or folder shown to the guest.
type Mount struct {
	// Source was opened by the caller (O_PATH is enough), so that the runtime
	// never lends rights of its own. The caller closes it after Start.
	Source *os.File
	// Target is the absolute, clean path inside the sandbox.
	Target string
	// ReadWrite allows writing; the zero value is read-only.
	ReadWrite bool
}

var digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Validate checks the parts that every tier needs. Errors wrap ErrInvalid.
func (s Spec) Validate() error {
	if s.Isolation.String() == "none" {
		return fmt.Errorf("%w: no isolation given", ErrInvalid)
	}
	if len(s.Args) == 0 || s.Args[0] == "" {
		return fmt.Errorf("%w: no program to run", ErrInvalid)
	}
	if !digestRE.MatchString(s.Image.Digest) {
		return fmt.Errorf("%w: image digest must be sha256:<64 hex>", ErrInvalid)
	}
	for _, a := range s.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return fmt.Errorf("%w: an argument holds a NUL byte", ErrInvalid)
		}
	}
	for _, e := range s.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" || strings.IndexByte(e, 0) >= 0 {
			return fmt.Errorf("%w: an environment entry is not KEY=VALUE", ErrInvalid)
		}
	}
	seen := map[string]bool{}
	for _, m := range s.Mounts {
		if m.Source == nil {
			return fmt.Errorf("%w: mount %q has no source", ErrInvalid, m.Target)
		}
		if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || m.Target == "/" {
			return fmt.Errorf("%w: mount target %q must be an absolute, clean path below /", ErrInvalid, m.Target)
		}
		if seen[m.Target] {
			return fmt.Errorf("%w: mount target %q given twice", ErrInvalid, m.Target)
		}
		seen[m.Target] = true
	}
	return s.Limits.Validate()
}

package images

import (
	"context"
	"io"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Outlet is how a build reaches a registry: from inside a sandbox, and, for
// the few files that such a sandbox is itself made of, from this process. The
// ecosystem is a Kind. It is safe for concurrent use.
type Outlet interface {
	// Start starts spec with a way out that leads to the registries of the
	// ecosystem and nowhere else. Where nothing here can run spec, the error
	// matches sandbox.ErrUnavailable.
	Start(ctx context.Context, ecosystem Kind, spec sandbox.Spec) (sandbox.Sandbox, error)
	// Get opens a document of the ecosystem's registry, by its path below the
	// registry's address or by its whole URL, with the client's credentials.
	// The caller closes it. Errors match ErrNetwork, ErrDenied or ErrNotFound.
	Get(ctx context.Context, ecosystem Kind, url string) (io.ReadCloser, error)
	// Client is what the ecosystem's tool of this host is configured with.
	Client(ctx context.Context, ecosystem Kind) (Client, error)
	// Images says how images are read from a container registry, which is named
	// by its host: through the caller's guard, with the user's log-in.
	Images(ctx context.Context, registry string) ([]remote.Option, error)
}

// Client is the part of a tool's configuration that its run in a sandbox is
// given.
type Client struct {
	// Settings are the tool's own, by their names there, without secrets. For
	// npm they are lines of an npmrc, for pip of a pip.conf, for Go variables.
	Settings map[string]string
	// Secret are variables that can hold credentials, as NAME=VALUE. They never
	// get into a file, a log or a run in which package code could read them.
	Secret []string
	// Certificates are the authorities that the registry is checked by, in PEM;
	// nil means the base image's.
	Certificates []byte
	// Folders are folders of this host to show read-only: name -> path.
	Folders map[string]string
}

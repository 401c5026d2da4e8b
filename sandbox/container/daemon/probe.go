//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
)

// MinVersion is the oldest containerd that is used: older ones ignore the id
// maps of mounts without a word.
const MinVersion = "2.0"

// Version asks the containerd at address for its version, without a leading
// v. It fails where nothing answers before ctx ends or 5 s are over.
func Version(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	address = strings.TrimPrefix(address, "unix://")
	// The client would go on dialling a socket that is not there.
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
	if err != nil {
		return "", fmt.Errorf("containerd does not answer: %w", err)
	}
	_ = conn.Close()
	client, err := containerd.New(address, containerd.WithTimeout(5*time.Second))
	if err != nil {
		return "", fmt.Errorf("containerd at %s: %w", address, err)
	}
	defer client.Close() //nolint:errcheck // one answer was all that it was for
	v, err := client.Version(ctx)
	if err != nil {
		return "", fmt.Errorf("containerd at %s does not answer: %w", address, err)
	}
	return strings.TrimPrefix(v.Version, "v"), nil
}

// Recent reports whether version is minimum or later. Both are
// MAJOR.MINOR[.PATCH], what follows (a distribution's suffix) is ignored. What
// does not parse is not recent.
func Recent(version, minimum string) bool {
	have, ok1 := majorMinor(version)
	want, ok2 := majorMinor(minimum)
	return ok1 && ok2 && (have[0] > want[0] || have[0] == want[0] && have[1] >= want[1])
}

func majorMinor(v string) ([2]int, bool) {
	parts := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
	var out [2]int
	if len(parts) < 2 {
		return out, false
	}
	for i := range out {
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return out, false
		}
		out[i] = n
	}
	return out, true
}

var errTooOld = errors.New("it ignores id-mapped mounts, " + MinVersion + " or later is needed")

// usable asks for the version and refuses one that is too old.
func usable(ctx context.Context, address string) (string, error) {
	v, err := Version(ctx, address)
	if err != nil {
		return "", err
	}
	if !Recent(v, MinVersion) {
		return "", fmt.Errorf("containerd at %s is version %.40q: %w", address, v, errTooOld)
	}
	return v, nil
}

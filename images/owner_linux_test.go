package images

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestStoreOfAnother: who can write to the store decides what runs, with this
// user's secrets.
func TestStoreOfAnother(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"a folder that all can write to": func(dir string) error { return os.Chmod(dir, 0o777) },
		"a folder of another user":       func(dir string) error { return os.Chown(dir, 47999, -1) },
		"a link": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir+"2", dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "images")
			if _, err := openStore(dir, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			if err := spoil(dir); errors.Is(err, fs.ErrPermission) {
				t.Skip("needs root")
			} else if err != nil {
				t.Fatal(err)
			}
			if _, err := openStore(dir, slog.New(slog.DiscardHandler)); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("got %v, want a refusal", err)
			}
		})
	}
}

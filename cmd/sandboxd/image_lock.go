package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/images"
)

// maxLock bounds a lock file in bytes: the largest package tree seen needs
// under one megabyte.
const maxLock = 16 << 20

// buildImage seals what a reference, or a lock, names.
func buildImage(ctx context.Context, b *images.Builder, args []string, update bool, lockFile string) (images.Image, error) {
	if lockFile != "" {
		if len(args) > 0 || update {
			return images.Image{}, usagef("--lock says what to build: leave the reference and --update out")
		}
		lock, err := readLock(lockFile)
		if err != nil {
			return images.Image{}, err
		}
		return b.BuildLocked(ctx, lock)
	}
	ref, _, err := images.FromCommand(args)
	if err != nil {
		return images.Image{}, err
	}
	if !update {
		return b.Build(ctx, ref)
	}
	// A newer package on an old base would leave the base's faults in place.
	if err := b.UpdateBase(ctx); err != nil {
		return images.Image{}, err
	}
	return b.Update(ctx, ref)
}

func readLock(path string) (images.Lock, error) {
	var lock images.Lock
	f, err := os.Open(path)
	if err != nil {
		return lock, usageError{err}
	}
	defer f.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err != nil {
		return lock, err
	}
	if len(data) > maxLock {
		return lock, usagef("%s: a lock has at most %s", path, size(maxLock))
	}
	if err := decodeStrict(data, &lock); err != nil {
		return lock, usagef("%s is no version lock: %w (write one with sandboxd image lock REF)", path, err)
	}
	return lock, nil
}

// builtRef reads the reference to an image that was built already, and gives
// what knows of it.
func builtRef(cmd *cobra.Command, args, with []string) (*images.Builder, images.Ref, error) {
	ref, _, err := images.FromCommand(args)
	if err != nil {
		return nil, ref, usageError{err}
	}
	b, err := newBuilder(with, cmd.ErrOrStderr())
	return b, ref, err
}

func newImageLock() *cobra.Command {
	var with []string
	cmd := &cobra.Command{
		Use:   "lock REF",
		Short: "Print an image's version lock, to build the same image elsewhere",
		Long: `Print an image's version lock as JSON: the resolved tree with its hashes, Node
and the base packages, without addresses or secrets. Keep it in version control;
sandboxd image build --lock FILE builds just that, to the same digest.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, ref, err := builtRef(cmd, args, with)
			if err != nil {
				return err
			}
			img, err := b.Inspect(ref)
			if err != nil {
				return err
			}
			if img.Lock == nil {
				return fmt.Errorf("%s is a module: its digest, %s, is its lock", ref, img.Digest)
			}
			return writeJSON(cmd.OutOrStdout(), img.Lock)
		},
	}
	cmd.Flags().StringSliceVar(&with, "with", nil, "the distribution packages that were added at the build")
	cmd.ValidArgsFunction = completeImages
	return cmd
}

func newImageBill() *cobra.Command {
	var with []string
	cmd := &cobra.Command{
		Use:   "sbom REF",
		Short: "Print an image's bill of materials, as CycloneDX JSON",
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, ref, err := builtRef(cmd, args, with)
			if err != nil {
				return err
			}
			bill, err := b.Bill(ref)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(bill)
			return err
		},
	}
	cmd.Flags().StringSliceVar(&with, "with", nil, "the distribution packages that were added at the build")
	cmd.ValidArgsFunction = completeImages
	return cmd
}

// decodeStrict takes one JSON document without unknown keys.
func decodeStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the document")
	}
	return nil
}

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/images"
)

// inspection is an image with its parts as --json shows it. Values of variables
// are the image's own, never a user's.
type inspection struct {
	imageView
	Used       time.Time          `json:"used"`
	Own        int64              `json:"own_bytes"`
	Entrypoint []string           `json:"entrypoint,omitempty"`
	Cmd        []string           `json:"cmd,omitempty"`
	Env        []string           `json:"env,omitempty"`
	Dir        string             `json:"dir,omitempty"`
	Layers     []images.LayerInfo `json:"layers,omitempty"`
	Name       string             `json:"name,omitempty"`
	Version    string             `json:"version,omitempty"`
	Integrity  string             `json:"integrity,omitempty"`
	Node       string             `json:"node,omitempty"`
	Packages   int                `json:"base_packages,omitempty"`
}

func newImageInspect() *cobra.Command {
	var with []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect REF",
		Short: "Show what an image is made of, and what it shares with others",
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, ref, err := builtRef(cmd, args, with)
			if err != nil {
				return err
			}
			d, err := b.Describe(ref)
			if err != nil {
				return err
			}
			v := inspection{
				imageView: viewOf(d.Image), Used: d.Used, Own: d.Own,
				Entrypoint: d.Entrypoint, Cmd: d.Cmd, Env: d.Env, Dir: d.Dir, Layers: d.Layers,
			}
			if l := d.Lock; l != nil {
				v.Name, v.Version, v.Integrity, v.Node, v.Packages = l.Name, l.Version, l.Integrity, l.Node.Version, len(l.Base)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), v)
			}
			return printInspection(cmd.OutOrStdout(), v)
		},
	}
	cmd.Flags().StringSliceVar(&with, "with", nil, "the distribution packages that were added at the build")
	cmd.ValidArgsFunction = completeImages
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

func printInspection(w io.Writer, v inspection) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(tw, "reference\t%s\ndigest\t%s\n", v.Ref, v.Digest)
	if v.Name != "" {
		fmt.Fprintf(tw, "package\t%s %s\n", v.Name, v.Version)
	}
	if v.Node != "" {
		fmt.Fprintf(tw, "node\t%s\n", v.Node)
	}
	fmt.Fprintf(tw, "size\t%s, %s of it its own\n", size(v.Size), size(v.Own))
	fmt.Fprintf(tw, "built\t%s\nused\t%s\n", v.Created.Format(time.DateTime), v.Used.Format(time.DateTime))
	if len(v.Entrypoint) > 0 {
		fmt.Fprintf(tw, "starts\t%q\n", v.Entrypoint)
	}
	for i, l := range v.Layers {
		name := ""
		if i == 0 {
			name = "layers"
		}
		fmt.Fprintf(tw, "%s\t%.19s  %s, in %d other image(s)\n", name, l.Digest, size(l.Size), l.SharedBy)
	}
	return tw.Flush()
}

func newImageExport() *cobra.Command {
	var with []string
	var out string
	cmd := &cobra.Command{
		Use:   "export REF… -o FILE",
		Short: "Write images as one OCI archive, for hosts without a registry",
		Long: `Write images as one OCI image archive, each with its version lock and its bill
of materials. sandboxd image import takes it in elsewhere; layers that images
share are in it once.`,
		Example: "  sandboxd image export npm:@modelcontextprotocol/server-everything -o servers.tar",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no image given: %s", cmd.UseLine())
			}
			if out == "" {
				return usagef("say where to: -o FILE, or -o - for stdout")
			}
			refs, err := refsOf(args)
			if err != nil {
				return err
			}
			b, err := newBuilder(with, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if out == "-" {
				w := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<20)
				return errors.Join(b.Export(cmd.Context(), w, refs...), w.Flush())
			}
			return wholeFile(out, func(w io.Writer) error { return b.Export(cmd.Context(), w, refs...) })
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the archive's `FILE`; - is stdout")
	cmd.Flags().StringSliceVar(&with, "with", nil, "the distribution packages that were added at the build")
	cmd.ValidArgsFunction = completeImages
	return cmd
}

func refsOf(args []string) ([]images.Ref, error) {
	var refs []images.Ref
	for _, a := range args {
		ref, _, err := images.FromCommand([]string{a})
		if err != nil {
			return nil, usagef("no image is named %q: sandboxd image ls shows their names", a)
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// wholeFile writes a file that appears under its name only once it is whole.
func wholeFile(name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".sandboxd-*")
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func newImageImport() *cobra.Command {
	var with []string
	var asJSON bool
	var o images.ImportOptions
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Take in images from an archive, each part held to its digest",
		Long: `Take in the images of an archive that sandboxd image export wrote; - is stdin.
Every part is held to its digest and every image to its version lock. An image
that is here already under the same reference is only replaced with --replace.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := newBuilder(with, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			from := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return usageError{err}
				}
				defer f.Close() //nolint:errcheck // only read from
				from = f
			}
			list, err := b.Import(cmd.Context(), bufio.NewReaderSize(from, 1<<20), o)
			if err != nil {
				return buildError(err)
			}
			return printImages(cmd.OutOrStdout(), list, asJSON)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&o.Replace, "replace", false, "put the archive's images in the place of others of the same reference")
	fl.BoolVar(&o.Dry, "dry-run", false, "check the archive and show what is in it, and keep nothing")
	fl.BoolVar(&asJSON, "json", false, "print the images as JSON")
	fl.StringSliceVar(&with, "with", nil, "the distribution packages that the images have beside the usual ones")
	return cmd
}

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/images"
)

func newImage() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Build, list and remove sealed images",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImageBuild(), newImageLock(), newImageBill(), newImageUpdate(), newImageInspect(), newImageExport(), newImageImport(), newImageList(), newImageRemove(), newImagePrune())
	return cmd
}

// imageView is an image as --json shows it.
type imageView struct {
	Ref     string    `json:"ref"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created"`
}

func viewOf(img images.Image) imageView {
	return imageView{Ref: img.Ref.String(), Digest: img.Digest, Size: img.Size, Created: img.Created}
}

func newImageBuild() *cobra.Command {
	var asJSON, update bool
	var c common
	var lock string
	cmd := &cobra.Command{
		Use:   "build [flags] REF | -- COMMAND… | --lock FILE",
		Short: "Fetch and seal an image, so that runs need no registry",
		Long: `Fetch what a server is made of, seal it under a digest and print that, so that
later runs need no registry. REF or COMMAND is what sandboxd run takes:

  sandboxd image build -- npx -y @modelcontextprotocol/server-memory
  sandboxd image build npm:@modelcontextprotocol/server-memory@VERSION
  sandboxd image build pypi:mcp-server-time
  sandboxd image build --lock image.lock

What a version was resolved to is kept: the same REF gives the same image until
--update. A lock is what sandboxd image lock prints. docs/images.md says what is
fetched how.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(); err != nil {
				return err
			}
			l, closeAll, err := c.open(cmd.Context(), false)
			if err != nil {
				return err
			}
			defer closeAll()
			img, err := buildImage(cmd.Context(), l.builder, args, update, lock)
			if err != nil {
				return buildError(err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), viewOf(img))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), img.Digest)
			return err
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.BoolVar(&asJSON, "json", false, "print the image as JSON")
	fl.BoolVar(&update, "update", false, "resolve the reference and the base anew instead of using what was locked")
	fl.StringVar(&lock, "lock", "", "build just what this version lock `FILE` says, to the same digest")
	c.flags(cmd)
	return cmd
}

func newImageList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the images that were built here",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := newBuilder(nil, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			list, err := b.List()
			if err != nil {
				return err
			}
			if len(list) == 0 && !asJSON {
				fmt.Fprintln(cmd.ErrOrStderr(), "sandboxd: no image was built here yet: sandboxd image build -- npx -y PACKAGE")
				return nil
			}
			return printImages(cmd.OutOrStdout(), list, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the list as JSON")
	return cmd
}

func printImages(w io.Writer, list []images.Image, asJSON bool) error {
	if asJSON {
		views := []imageView{}
		for _, img := range list {
			views = append(views, viewOf(img))
		}
		return writeJSON(w, views)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "REFERENCE\tDIGEST\tSIZE\tBUILT")
	for _, img := range list {
		fmt.Fprintf(tw, "%s\t%.19s\t%s\t%s\n", img.Ref, img.Digest, size(img.Size), img.Created.Format(time.DateOnly))
	}
	return tw.Flush()
}

func newImageRemove() *cobra.Command {
	var dry bool
	var with []string
	cmd := &cobra.Command{
		Use:   "rm REF…",
		Short: "Forget images and remove what no other image needs",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no image given: %s", cmd.UseLine())
			}
			b, err := newBuilder(with, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, a := range args {
				ref, _, err := images.FromCommand([]string{a})
				if err != nil {
					return usagef("no image is named %q: sandboxd image ls shows their names", a)
				}
				if dry {
					img, err := b.Inspect(ref)
					if err != nil {
						return err
					}
					fmt.Fprintf(cmd.OutOrStdout(), "would remove %s (%s)\n", img.Ref, img.Digest)
					continue
				}
				if err := b.Remove(cmd.Context(), ref); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&with, "with", nil, "the distribution packages that were added at the build")
	cmd.ValidArgsFunction = completeImages
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	return cmd
}

func newImagePrune() *cobra.Command {
	var dry bool
	var unused time.Duration
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove layers that no image needs any more, and images that nobody used for long",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := newBuilder(nil, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if unused < 0 || cmd.Flags().Changed("unused-for") && unused == 0 {
				return usagef("--unused-for: want a time such as 720h")
			}
			n, err := pruneImages(cmd, b, unused, dry)
			if err != nil {
				return err
			}
			did := "freed"
			if dry {
				did = "would free"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", did, size(n))
			return err
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed, and how much")
	cmd.Flags().DurationVar(&unused, "unused-for", 0, "forget images too that were not used for that long, such as 720h")
	return cmd
}

// pruneImages forgets what was not used for long, where asked to, and removes
// what no image needs.
func pruneImages(cmd *cobra.Command, b *images.Builder, unused time.Duration, dry bool) (int64, error) {
	if unused == 0 {
		return b.Prune(cmd.Context(), dry)
	}
	before := time.Now().Add(-unused)
	stale, err := b.Stale(before)
	if err != nil {
		return 0, err
	}
	word := "removing"
	if dry {
		word = "would remove"
	}
	for _, img := range stale {
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s (%s)\n", word, img.Ref, img.Digest)
	}
	if dry {
		return b.Prune(cmd.Context(), true)
	}
	return b.RemoveStale(cmd.Context(), before)
}

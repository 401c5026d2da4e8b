package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/images/catalog"
)

// completeImages offers the images that were built here. What cannot be read
// offers nothing: a shell has no place for an error.
func completeImages(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	b, err := newBuilder(nil, io.Discard)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := b.List()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var refs []string
	for _, img := range list {
		refs = append(refs, img.Ref.String())
	}
	return refs, cobra.ShellCompDirectiveNoFileComp
}

// completeCatalog offers the servers of the shipped catalogue.
func completeCatalog(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	x, _, err := catalog.Shipped()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, e := range x.Servers {
		names = append(names, e.Meta.Catalog.Short)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeServers are the names of the servers of config files.
func completeServers(files []string) []string {
	cfg, err := config.Load(config.Options{}, files...)
	if err != nil {
		return nil
	}
	var names []string
	for _, s := range cfg.Servers {
		names = append(names, s.ID)
	}
	return names
}

package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/registries"
	"github.com/sandboxd/sandboxd/images"
)

// Client is the configuration of the ecosystem's client on this host.
func (o *outlet) Client(ctx context.Context, kind images.Kind) (images.Client, error) {
	switch kind {
	case images.KindNPM:
		return o.npm(ctx)
	case images.KindPyPI:
		return o.pip(ctx)
	case images.KindGo:
		return o.golang(ctx)
	case images.KindOCI, images.KindDir, images.KindWASM: // have no client's settings
	}
	return images.Client{}, noClient(string(kind))
}

// npmConfig is npm's configuration, with the token of the operator's mirror.
func (o *outlet) npmConfig(ctx context.Context) (registries.NPM, error) {
	npm, err := o.op.finder.NPM(ctx)
	if errors.Is(err, registries.ErrNoClient) {
		return npm, noClient("npm")
	}
	if err != nil {
		return npm, err
	}
	token, err := o.op.set.Token("npm")
	if u, parseErr := url.Parse(npm.Registry); err == nil && parseErr == nil && token.Reveal() != "" {
		npm.Credentials["//"+u.Host+strings.TrimSuffix(u.EscapedPath(), "/")+"/:_authToken"] = token.Reveal()
	}
	return npm, err
}

// withLogin puts the operator's credentials for a mirror into its URL.
func (o *outlet) withLogin(registry, address string) (string, error) {
	reg := o.op.set.Registries[registry]
	token, err := o.op.set.Token(registry)
	if err != nil || address != reg.Mirror || token.Reveal() == "" {
		return address, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", noClient(registry) // it was checked when it was read
	}
	user := reg.User
	if user == "" {
		user = "__token__"
	}
	u.User = url.UserPassword(user, token.Reveal())
	return u.String(), nil
}

func (o *outlet) npm(ctx context.Context) (images.Client, error) {
	npm, err := o.npmConfig(ctx)
	if err != nil {
		return images.Client{}, err
	}
	out := images.Client{Settings: map[string]string{"registry": npm.Registry}}
	for name, address := range npm.Scopes {
		out.Settings[name] = address
	}
	if npm.Insecure {
		out.Settings["strict-ssl"] = "false"
	}
	for name, value := range npm.Credentials {
		out.Secret = append(out.Secret, "npm_config_"+name+"="+value)
	}
	out.Certificates, err = certificates(npm.CAFile, "NODE_EXTRA_CA_CERTS")
	return out, err
}

// pip passes its indexes as secrets, since their URLs can hold a password.
func (o *outlet) pip(ctx context.Context) (images.Client, error) {
	pip := o.op.finder.Pip(ctx)
	if ctx.Err() != nil {
		return images.Client{}, context.Cause(ctx)
	}
	out := images.Client{Settings: map[string]string{}, Folders: map[string]string{}}
	if pip.NoIdx {
		out.Settings["no-index"] = "1"
	}
	if len(pip.Trust) > 0 {
		out.Settings["trusted-host"] = strings.Join(pip.Trust, " ")
	}
	index, err := o.withLogin("pypi", pip.Index)
	if err != nil {
		return images.Client{}, err
	}
	if pip.Index = index; pip.Index != "" {
		out.Secret = append(out.Secret, "PIP_INDEX_URL="+pip.Index)
	}
	if len(pip.Extra) > 0 {
		out.Secret = append(out.Secret, "PIP_EXTRA_INDEX_URL="+strings.Join(pip.Extra, " "))
	}
	for i, link := range pip.Links {
		link = strings.TrimPrefix(link, "file://")
		if info, err := os.Stat(link); err == nil && info.IsDir() && filepath.IsAbs(link) {
			out.Folders[strconv.Itoa(i)] = link
		}
	}
	out.Certificates, err = certificates(pip.CAFile, "")
	return out, err
}

// golang passes its proxies as a secret, since their URLs can hold a password.
func (o *outlet) golang(ctx context.Context) (images.Client, error) {
	env := o.op.finder.Go(ctx)
	if ctx.Err() != nil {
		return images.Client{}, context.Cause(ctx)
	}
	if env["GOROOT"] == "" {
		return images.Client{}, &images.Error{Kind: images.ErrTool, What: "there is no Go toolchain here to build with", Next: "install Go, or use the server's container image"}
	}
	out := images.Client{Settings: map[string]string{}, Folders: map[string]string{"goroot": env["GOROOT"]}}
	proxy, err := o.withLogin("go", env["GOPROXY"])
	if err != nil {
		return images.Client{}, err
	}
	env["GOPROXY"] = proxy
	for name, value := range env {
		switch {
		case name == "GOROOT" || value == "":
		case name == "GOPROXY":
			out.Secret = append(out.Secret, name+"="+value)
		default:
			out.Settings[name] = value
		}
	}
	out.Certificates, err = certificates("", "SSL_CERT_FILE")
	return out, err
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth"
)

type loginFlags struct {
	authFlags
	scopes      []string
	port        int
	open, paste bool
	timeout     time.Duration
}

func newAuthLogin() *cobra.Command {
	var f loginFlags
	cmd := &cobra.Command{
		Use:   "login SERVER --config FILE",
		Short: "Log in to a remote server",
		Long: `Log in to a remote server: print the URL at which you let sandboxd in, wait for
the browser to come back to a port on 127.0.0.1, and keep the tokens. A running
sandboxd serve takes them up within seconds.

On a machine without a browser use --paste: open the URL elsewhere, and paste
the address to which the browser was sent at last, though it could not open it.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.login(cmd, args[0]) },
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringSliceVar(&f.scopes, "scope", nil, "ask for these scopes too")
	fl.IntVar(&f.port, "port", 0, "port on 127.0.0.1 for the browser to come back to (default: the config's, else the last login's, else any)")
	fl.BoolVar(&f.open, "open", false, "open the URL in this machine's browser")
	fl.BoolVar(&f.paste, "paste", false, "read the address that the browser was sent to from standard input")
	fl.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait")
	return cmd
}

func (f *loginFlags) login(cmd *cobra.Command, id string) error {
	cfg, l, err := f.authFlags.open(cmd)
	if err != nil {
		return err
	}
	s, err := serverNamed(cfg, id)
	if err != nil {
		return err
	}
	c, err := l.client(s)
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), f.timeout, fmt.Errorf("nobody logged in within %s (--timeout gives it longer)", f.timeout))
	defer cancel()
	ln, err := f.listen(ctx, c, s)
	if err != nil {
		return err
	}
	defer ln.Close() //nolint:errcheck // mostly closed before
	redirect := "http://" + ln.Addr().String() + oauth.RedirectPath
	login, err := c.Begin(ctx, redirect, f.scopes)
	if err != nil {
		return err
	}
	out, errOut := cmd.OutOrStdout(), cmd.ErrOrStderr()
	fmt.Fprintf(errOut, "server %s wants a login at %s", id, login.Issuer())
	if scopes := login.Scopes(); len(scopes) > 0 {
		fmt.Fprintf(errOut, "\nscopes: %s", strings.Join(scopes, " "))
	}
	fmt.Fprintf(errOut, "\nopen this URL in a browser:\n\n")
	if _, err := fmt.Fprintln(out, login.URL()); err != nil {
		return err
	}
	if f.open {
		if err := openBrowser(ctx, login.URL()); err != nil {
			fmt.Fprintf(errOut, "sandboxd: no browser could be opened: %v\n", err)
		}
	}
	answer, err := f.answer(ctx, cmd.InOrStdin(), errOut, login, ln)
	if err != nil {
		return err
	}
	if err := login.Finish(ctx, answer); err != nil {
		return err
	}
	_, err = fmt.Fprintf(errOut, "\nlogged in to %s\n", id)
	return err
}

// listen opens the redirect's port.
func (f *loginFlags) listen(ctx context.Context, c *oauth.Client, s config.Server) (net.Listener, error) {
	port := strconv.Itoa(f.port)
	fixed := f.port != 0
	if !fixed && s.OAuth != nil && s.OAuth.RedirectPort != 0 {
		port, fixed = strconv.Itoa(s.OAuth.RedirectPort), true
	}
	var err error
	if !fixed {
		if port, err = c.RedirectPort(ctx); err != nil {
			return nil, err
		}
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:"+port)
	if err != nil && !fixed {
		ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on port %s for the browser to come back to: %w (choose another with --port)", port, err)
	}
	return ln, nil
}

// answer waits for the redirect, or for the user to paste it.
func (f *loginFlags) answer(ctx context.Context, in io.Reader, w io.Writer, login *oauth.Login, ln net.Listener) (url.Values, error) {
	if !f.paste {
		return login.Receive(ctx, ln)
	}
	fmt.Fprint(w, "\npaste the address that the browser was sent to: ")
	line, err := bufio.NewReader(io.LimitReader(in, 64<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return oauth.ParseRedirect(line)
}

func openBrowser(ctx context.Context, url string) error {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	}
	return exec.CommandContext(ctx, program, url).Run()
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
)

type callFlags struct {
	server, tokenFile string
	timeout           time.Duration
}

func newCall() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "call CONNECTOR ACTION [JSON]",
		Short: "Call a tool of a running sandboxd serve",
		Long: `Call a tool of a running sandboxd serve and print the result as JSON. JSON is
the arguments' object ({} if left out, - reads standard input). Exit status 1
where the tool failed.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || len(args) > 3 {
				return usagef("%s takes 2 or 3 arguments, not %d: %s", cmd.CommandPath(), len(args), cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			input := "{}"
			if len(args) == 3 {
				input = args[2]
			}
			if input == "-" {
				b, err := io.ReadAll(cmd.InOrStdin())
				if err != nil {
					return err
				}
				input = string(b)
			}
			return f.call(cmd.Context(), cmd.OutOrStdout(), args[0], args[1], input)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.server, "server", envOr("SANDBOXD_SERVER", "http://"+config.DefaultListen), "`URL` of the running serve")
	fl.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the bearer token")
	fl.DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait")
	return cmd
}

func (f *callFlags) call(ctx context.Context, w io.Writer, connector, action, input string) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(input), &object); err != nil {
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			err = fmt.Errorf("this is JSON of type %s", wrong.Value)
		}
		return usagef(`the arguments are not a JSON object such as '{"text": "hello"}': %w`, err)
	}
	if u, err := url.Parse(f.server); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return usagef("--server %q: want http://HOST:PORT", f.server)
	}
	token, err := readToken(f.tokenFile)
	if err != nil {
		return err
	}
	target, err := url.JoinPath(f.server, "api/v1/automation/connectors", url.PathEscape(connector), "actions", url.PathEscape(action))
	if err != nil {
		return usagef("--server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader([]byte(input)))
	if err != nil {
		return usagef("--server: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// No proxy: this is our own API, on loopback unless the user says else.
	client := &http.Client{Transport: &http.Transport{}}
	res, err := client.Do(req)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // without the URL, which is said already
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer from %s within %s (--timeout gives it longer)", f.server, f.timeout)
	case err != nil:
		return fmt.Errorf("no answer from %s: %w (is sandboxd serve running?)", f.server, err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	var result struct {
		OK bool `json:"ok"`
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &result); err != nil {
		return fmt.Errorf("%s answered %s, which is not a result", f.server, res.Status)
	}
	if _, err := fmt.Fprintf(w, "%s\n", bytes.TrimSpace(body)); err != nil {
		return err
	}
	if !result.OK {
		return statusError(exitFailure)
	}
	return nil
}

package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"golang.org/x/oauth2"
)

// maxDocument bounds what an authorization server may answer, in bytes.
const maxDocument = 256 << 10

// errAbsent says that a document is not at a URL (a status from 400 to 499).
var errAbsent = errors.New("there is none")

// getJSON reads one document.
func getJSON(ctx context.Context, hc *http.Client, u *url.URL, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return errors.New("it is no plain URL")
	}
	_, err = send(hc, req, into)
	return err
}

// postJSON sends one document and reads another.
func postJSON(ctx context.Context, hc *http.Client, u *url.URL, doc, into any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(b))
	if err != nil {
		return errors.New("it is no plain URL")
	}
	req.Header.Set("Content-Type", "application/json")
	_, err = send(hc, req, into)
	return err
}

// send sends a request and reads the JSON of its answer, unless into is nil.
func send(hc *http.Client, req *http.Request, into any) (status int, err error) {
	ctx, cancel := context.WithTimeout(req.Context(), askWait)
	defer cancel()
	req.Header.Set("Accept", "application/json")
	res, err := hc.Do(req.WithContext(ctx))
	if err != nil {
		return 0, plain(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	code := res.StatusCode
	switch {
	case code/100 == 3 || res.Request.URL.String() != req.URL.String():
		return code, errors.New("it answered with a redirect, and none is followed here")
	case code/100 == 4 && into != nil:
		return code, fmt.Errorf("%w: %d %s%s", errAbsent, code, http.StatusText(code), errorCode(res.Body))
	case code/100 != 2:
		return code, fmt.Errorf("it answered %d %s", code, http.StatusText(code))
	case into == nil:
		return code, nil
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	switch {
	case err != nil:
		return code, errors.New("its answer was cut off")
	case len(b) > maxDocument:
		return code, fmt.Errorf("its answer has more than %d bytes", maxDocument)
	case json.Unmarshal(b, into) != nil:
		return code, errors.New("its answer is not the JSON that was asked for")
	}
	return code, nil
}

var code = regexp.MustCompile(`^[a-z_]{1,64}$`) // of an error: RFC 6749, 5.2

// errorCode is the code in an error's body, in parentheses; nothing else of it
// is repeated.
func errorCode(body io.Reader) string {
	var e struct {
		Error string `json:"error"`
	}
	b, err := io.ReadAll(io.LimitReader(body, 16<<10))
	if err != nil || json.Unmarshal(b, &e) != nil || !code.MatchString(e.Error) {
		return ""
	}
	return " (" + e.Error + ")"
}

// plain is an error of a request without its URL, which may hold a code.
func plain(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("it gave no answer in time")
	}
	return err
}

// errEnded marks a refusal of the token endpoint that no second try will change.
var errEnded = errors.New("the authorization server refused")

// tokenError is an error of the token endpoint in words of our own.
func tokenError(err error) error {
	var re *oauth2.RetrieveError
	if !errors.As(err, &re) {
		var ue *url.Error
		if errors.As(err, &ue) {
			return plain(err)
		}
		return errors.New("its answer is no token")
	}
	status := 0
	if re.Response != nil {
		status = re.Response.StatusCode
	}
	switch {
	case status/100 == 3:
		return errors.New("it answered with a redirect, and none is followed here")
	case !code.MatchString(re.ErrorCode):
		return fmt.Errorf("it answered %d %s", status, http.StatusText(status))
	case re.ErrorCode == "invalid_grant" || re.ErrorCode == "invalid_client" || re.ErrorCode == "unauthorized_client":
		return fmt.Errorf("%w: %s", errEnded, re.ErrorCode)
	}
	return fmt.Errorf("it answered %d %s (%s)", status, http.StatusText(status), re.ErrorCode)
}

// checkToken refuses what cannot be sent as a bearer token (RFC 6750, 2.1).
func checkToken(t *oauth2.Token) error {
	switch {
	case !strings.EqualFold(t.TokenType, "bearer"):
		return errors.New("its token is no bearer token")
	case !tokenText(t.AccessToken) || t.RefreshToken != "" && !tokenText(t.RefreshToken):
		return errors.New("its token holds what no token may")
	}
	return nil
}

func tokenText(s string) bool {
	return s != "" && len(s) <= 16<<10 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

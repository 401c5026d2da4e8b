package netguard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// DecodeConfig reads an egress section from JSON, strictly: an unknown key, a
// key given twice and trailing text are errors. It does not compile.
func DecodeConfig(data []byte) (Config, error) {
	if err := checkKeys(json.NewDecoder(bytes.NewReader(data)), 0); err != nil {
		return Config{}, err
	}
	type plain Config // drops nothing but would-be methods
	var in struct {
		plain
		PinTTL string `json:"pin_ttl"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		if strings.Contains(err.Error(), "unknown field") {
			return Config{}, fmt.Errorf("%w: %w", ErrUnknownKey, err)
		}
		return Config{}, fmt.Errorf("policy: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("policy: text after its end")
	}
	cfg := Config(in.plain)
	if in.PinTTL != "" {
		d, err := time.ParseDuration(in.PinTTL)
		if err != nil {
			return Config{}, fmt.Errorf("pin_ttl: %w", err)
		}
		cfg.PinTTL = d
	}
	return cfg, nil
}

// maxDepth is more nesting than any egress section has.
const maxDepth = 16

// checkKeys walks one JSON value and refuses an object that names a key twice
// or in another case: encoding/json would take the last one.
func checkKeys(dec *json.Decoder, depth int) error {
	if depth > maxDepth {
		return errors.New("policy: nested too deeply")
	}
	tok, err := dec.Token()
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for dec.More() {
		if delim == '{' {
			tok, err := dec.Token()
			if err != nil {
				return fmt.Errorf("policy: %w", err)
			}
			key, _ := tok.(string)
			if seen[key] {
				return fmt.Errorf("policy: key %q is given twice", cut(key))
			}
			if key != strings.ToLower(key) {
				return fmt.Errorf("%w: %q", ErrUnknownKey, cut(key))
			}
			seen[key] = true
		}
		if err := checkKeys(dec, depth+1); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	return nil
}

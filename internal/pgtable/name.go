// Package pgtable holds the schema-qualified name of the outbox table, read
// from a setting and written into SQL and into messages.
package pgtable

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// DefaultSchema is the schema of a name that was given without one.
const DefaultSchema = "public"

// maxBytes is Postgres' limit for an identifier. Postgres cuts a longer one
// silently, so that two long names may mean the same table.
const maxBytes = 63

// bare matches a part that needs no double quotes.
var bare = regexp.MustCompile(`^[a-z_][a-z0-9_$]*$`)

// Name is a schema-qualified table name, spelled as in the catalogue: without
// quotes, and in the case it has there. The zero Name names no table.
type Name struct {
	Schema, Table string
}

// Parse reads "table", "schema.table" or either with double-quoted parts, as
// in `"Order Service"."outbox_event"` (a quote inside is doubled). As in SQL, a
// part without quotes is folded to lower case; without a schema, the schema is
// public. The error says what is wrong and what is allowed.
func Parse(s string) (Name, error) {
	name, err := parse(s)
	if err != nil {
		return Name{}, fmt.Errorf(`table name %q: %w; allowed are table, schema.table and double-quoted parts like "My Schema"."My Table", each of at most %d bytes`, s, err, maxBytes)
	}
	return name, nil
}

func parse(s string) (Name, error) {
	first, rest, err := part(s)
	if err != nil {
		return Name{}, err
	}
	if rest == "" {
		return Name{Schema: DefaultSchema, Table: first}, nil
	}
	second, rest, err := part(rest[1:])
	if err != nil {
		return Name{}, err
	}
	if rest != "" {
		return Name{}, fmt.Errorf("more than two parts")
	}
	return Name{Schema: first, Table: second}, nil
}

// part cuts one identifier off s. The rest is empty or begins with a dot.
func part(s string) (name, rest string, err error) {
	if strings.HasPrefix(s, `"`) {
		name, rest, err = quoted(s[1:])
		if err != nil {
			return "", "", err
		}
	} else {
		end := strings.IndexByte(s, '.')
		if end < 0 {
			end = len(s)
		}
		name, rest = strings.ToLower(s[:end]), s[end:]
		if name != "" && !bare.MatchString(name) {
			return "", "", fmt.Errorf("part %q needs double quotes", s[:end])
		}
	}
	switch {
	case name == "":
		return "", "", fmt.Errorf("empty part")
	case rest != "" && rest[0] != '.':
		return "", "", fmt.Errorf("%q follows a closing quote", rest)
	case len(name) > maxBytes:
		return "", "", fmt.Errorf("part of %d bytes", len(name))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		// A line break could end a comment in generated SQL.
		return "", "", fmt.Errorf("control character or broken UTF-8")
	}
	return name, rest, nil
}

// quoted reads up to the closing quote; s begins after the opening one.
func quoted(s string) (name, rest string, err error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, `"`)
		if !found {
			return "", "", fmt.Errorf("unclosed double quote")
		}
		b.WriteString(before)
		if !strings.HasPrefix(after, `"`) {
			return b.String(), after, nil
		}
		b.WriteByte('"')
		s = after[1:]
	}
}

// Sanitize returns the name quoted for use in SQL.
func (n Name) Sanitize() string {
	return pgx.Identifier{n.Schema, n.Table}.Sanitize()
}

// Sibling returns another object of the same schema, quoted for use in SQL.
func (n Name) Sibling(object string) string {
	return pgx.Identifier{n.Schema, object}.Sanitize()
}

// String returns the name for messages, quoted only where it has to be; Parse
// reads it back.
func (n Name) String() string {
	return quoteIfNeeded(n.Schema) + "." + quoteIfNeeded(n.Table)
}

// UnmarshalText makes a Name readable from an environment variable, see [Parse].
func (n *Name) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*n = parsed
	return nil
}

func quoteIfNeeded(part string) string {
	if bare.MatchString(part) {
		return part
	}
	return pgx.Identifier{part}.Sanitize()
}

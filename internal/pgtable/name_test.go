package pgtable_test

import (
	"strings"
	"testing"

	"github.com/outbox-relay/outbox-relay/internal/pgtable"
)

func TestParse(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in          string
		want        pgtable.Name
		str, quoted string
	}{
		"a bare name is in public":            {`outbox_event`, pgtable.Name{Schema: "public", Table: "outbox_event"}, `public.outbox_event`, `"public"."outbox_event"`},
		"a schema is kept":                    {`orders.outbox_event`, pgtable.Name{Schema: "orders", Table: "outbox_event"}, `orders.outbox_event`, `"orders"."outbox_event"`},
		"unquoted parts are folded":           {`Orders.Outbox_Event`, pgtable.Name{Schema: "orders", Table: "outbox_event"}, `orders.outbox_event`, `"orders"."outbox_event"`},
		"quoted parts keep case and spaces":   {`"Order Service"."OutboxEvent"`, pgtable.Name{Schema: "Order Service", Table: "OutboxEvent"}, `"Order Service"."OutboxEvent"`, `"Order Service"."OutboxEvent"`},
		"a quoted part may hold a dot":        {`"a.b"`, pgtable.Name{Schema: "public", Table: "a.b"}, `public."a.b"`, `"public"."a.b"`},
		"a doubled quote is one quote":        {`public."say ""hi"""`, pgtable.Name{Schema: "public", Table: `say "hi"`}, `public."say ""hi"""`, `"public"."say ""hi"""`},
		"an injection stays an identifier":    {`"x""; DROP TABLE y; --"`, pgtable.Name{Schema: "public", Table: `x"; DROP TABLE y; --`}, `public."x""; DROP TABLE y; --"`, `"public"."x""; DROP TABLE y; --"`},
		"names beyond ASCII need quotes":      {`"événement"`, pgtable.Name{Schema: "public", Table: "événement"}, `public."événement"`, `"public"."événement"`},
		"a reserved word is a name as others": {`order`, pgtable.Name{Schema: "public", Table: "order"}, `public.order`, `"public"."order"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := pgtable.Parse(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("Parse(%q) = %+v, want %+v", tt.in, got, tt.want)
			}
			if got.String() != tt.str {
				t.Errorf("String() = %s, want %s", got, tt.str)
			}
			if got.Sanitize() != tt.quoted {
				t.Errorf("Sanitize() = %s, want %s", got.Sanitize(), tt.quoted)
			}
			again, err := pgtable.Parse(got.String())
			if err != nil || again != got {
				t.Errorf("Parse(String()) = %+v, %v, want %+v", again, err, got)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ in, want string }{
		"an empty name":           {``, "empty part"},
		"an empty schema":         {`.outbox_event`, "empty part"},
		"an empty table":          {`public.`, "empty part"},
		"an empty quoted part":    {`""`, "empty part"},
		"three parts":             {`db.public.outbox_event`, "more than two parts"},
		"a space without quotes":  {`outbox event`, "needs double quotes"},
		"a statement":             {`outbox_event; DROP TABLE x`, "needs double quotes"},
		"a quote in the middle":   {`out"box"`, "needs double quotes"},
		"an unclosed quote":       {`public."outbox`, "unclosed double quote"},
		"text after a quote":      {`"outbox"event`, "follows a closing quote"},
		"a part of over 63 bytes": {strings.Repeat("x", 64), "part of 64 bytes"},
		"a line break":            {"\"a\nb\"", "control character"},
		"broken UTF-8":            {"\"a\xff\"", "broken UTF-8"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := pgtable.Parse(tt.in)
			if err == nil {
				t.Fatalf("Parse(%q) = %+v, want an error", tt.in, got)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "schema.table") {
				t.Errorf("Parse(%q) says %q, want %q and what is allowed", tt.in, err, tt.want)
			}
		})
	}
}

func TestUnmarshalText(t *testing.T) {
	t.Parallel()
	var n pgtable.Name
	if err := n.UnmarshalText([]byte("orders.outbox_event")); err != nil || n.Schema != "orders" {
		t.Errorf("UnmarshalText gave %+v, %v", n, err)
	}
	if err := n.UnmarshalText([]byte("a b")); err == nil || n.Schema != "orders" {
		t.Errorf("UnmarshalText of a bad name gave %+v, %v; want an error and the name unchanged", n, err)
	}
}

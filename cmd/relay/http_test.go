package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/internal/testenv"
	"github.com/outbox-relay/outbox-relay/relay"
)

const nothingKnown = `{
	"status": "not_ready", "database": {"up": false}, "broker": {"up": false},
	"listener_up": false, "sentinel": false, "bell_armed": false,
	"waiting_topics": [], "waiting_rows": 0, "oldest_unpublished_seconds": null, "unpublished": null, "parked_rows": null
}`

func TestReadiness(t *testing.T) {
	t.Parallel()
	up := relay.Health{DatabaseUp: true, BrokerUp: true}
	deaf, waiting := up, up
	waiting.WaitingRows = 2
	waiting.WaitingTopics = []relay.WaitingTopic{{Topic: "shop.order", Error: "unknown topic", Attempts: 3, NextTry: time.Unix(1700000000, 0)}}
	sampled := up
	sampled.Sampled, sampled.OldestUnpublished, sampled.Unpublished = true, 1500*time.Millisecond, 12
	sampled.ParkedRows = 3
	sampled.ListenerUp, sampled.Sentinel, sampled.BellArmed = true, true, true

	// What is written here replaces the value in a body where nothing is known.
	for _, tt := range []struct {
		name   string
		health relay.Health
		status int
		want   string
	}{
		{"before anything is known", relay.Health{}, 503, `{}`},
		{
			"a broker that is out makes it unready",
			relay.Health{DatabaseUp: true, BrokerError: "no route"},
			503, `{"database":{"up":true},"broker":{"up":false,"error":"no route"}}`,
		},
		{
			"a password in an error does not get out",
			relay.Health{BrokerUp: true, DatabaseError: "postgres://u:" + secret + "@h is gone"},
			503, `{"database":{"up":false,"error":"postgres://u:***@h is gone"},"broker":{"up":true}}`,
		},
		{
			"a deaf listener leaves it ready", deaf,
			200, `{"status":"ready","database":{"up":true},"broker":{"up":true}}`,
		},
		{
			"waiting topics leave it ready", waiting,
			200, `{"status":"ready","database":{"up":true},"broker":{"up":true},"waiting_rows":2,
				"waiting_topics":[{"topic":"shop.order","error":"unknown topic","attempts":3,"next_try":"2023-11-14T22:13:20Z"}]}`,
		},
		{
			"samples are shown once taken", sampled,
			200, `{"status":"ready","database":{"up":true},"broker":{"up":true},"listener_up":true,"sentinel":true,"bell_armed":true,
				"oldest_unpublished_seconds":1.5,"unpublished":12,"parked_rows":3}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			handler := newHandler(func() relay.Health { return tt.health }, newRegistry())
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			if recorder.Code != tt.status || recorder.Header().Get("Content-Type") != "application/json" {
				t.Errorf("status %d, type %q; want %d, JSON", recorder.Code, recorder.Header().Get("Content-Type"), tt.status)
			}
			var got map[string]any
			if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{}
			for _, part := range []string{nothingKnown, tt.want} {
				if err := json.Unmarshal([]byte(part), &want); err != nil {
					t.Fatal(err)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func TestHandlersOfTheProcess(t *testing.T) {
	t.Parallel()
	handler := newHandler(func() relay.Health { return relay.Health{} }, newRegistry())
	for _, tt := range []struct {
		name, method, path string
		status             int
		want               []string
	}{
		{"it lives while nothing works", "GET", "/livez", 200, []string{"ok"}},
		{"metrics of the process", "GET", "/metrics", 200, []string{"go_goroutines", "process_start_time_seconds", "go_build_info"}},
		{"nothing is changed by HTTP", "POST", "/livez", 405, nil},
		{"other paths are unknown", "GET", "/admin", 404, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequest(tt.method, tt.path, nil))
			if recorder.Code != tt.status {
				t.Errorf("status %d, want %d", recorder.Code, tt.status)
			}
			for _, text := range tt.want {
				if !strings.Contains(recorder.Body.String(), text) {
					t.Errorf("the body lacks %q", text)
				}
			}
		})
	}
}

func TestHTTPServerFinishesRequestsWhenItEnds(t *testing.T) {
	t.Parallel()
	server, err := listenHTTP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	began, finish := make(chan struct{}), make(chan struct{})
	handler := http.NewServeMux()
	handler.HandleFunc("/slow", func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-finish
		_, _ = io.WriteString(w, "finished")
	})
	served, answered := make(chan error, 1), make(chan string, 1)
	go func() { served <- server.Serve(ctx, handler) }()
	go func() {
		_, body := get(t, "http://"+server.Addr()+"/slow")
		answered <- body
	}()
	<-began
	end()
	testenv.Eventually(t, "no new connection is taken", func() bool {
		status, _ := get(t, "http://"+server.Addr()+"/")
		return status == 0
	})
	close(finish)
	if body := <-answered; body != "finished" {
		t.Errorf("the request under way got %q", body)
	}
	if err := <-served; err != nil {
		t.Errorf("a stop is no error: %v", err)
	}
}

func TestHTTPServerReportsThatItFailed(t *testing.T) {
	t.Parallel()
	server, err := listenHTTP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if err := server.Serve(t.Context(), http.NotFoundHandler()); err == nil || !strings.Contains(err.Error(), "serve HTTP on 127.0.0.1:") {
		t.Errorf("got %v, want an error that names the address", err)
	}
}

func TestHTTPServerThatIsOff(t *testing.T) {
	t.Parallel()
	server, err := listenHTTP("off")
	if err != nil || server.Addr() != "off" {
		t.Fatalf("got %v, %v", server.Addr(), err)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := server.Serve(ctx, http.NotFoundHandler()); err != nil {
		t.Error(err)
	}
	server.Close()
}

// client keeps no connections, which would outlive the test.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// get returns the status and the body, or 0 when there is no answer.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	response, err := client().Do(request)
	if err != nil {
		return 0, err.Error()
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

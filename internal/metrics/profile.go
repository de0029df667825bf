package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/http/pprof"
	"net/url"
	"strings"
	"time"
)

// profileTimeout bounds a profile, whose length the request chooses.
const profileTimeout = 5 * time.Minute

// profiles serves /debug/pprof/ of this process.
func profiles() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// ServeProfiles serves profiles of this process on l until l is closed. It then
// ends running profiles.
func ServeProfiles(l net.Listener) {
	s := newHTTPServer(profiles(), profileTimeout)
	_ = s.Serve(newLimited(l, connectionsMax)) // ends when l is closed
	_ = s.Close()
}

// ServePprof answers /debug/pprof/ with profiles of this process, and
// /servers/N/debug/pprof/ with those of data server N, which serves them on
// sockets[N], a unix socket. It answers only requests that name a loopback
// host, so that a web page in a local browser cannot request profiles. It
// returns at once.
func (e *Endpoint) ServePprof(sockets []string) {
	mux := profiles()
	for i, socket := range sockets {
		prefix := fmt.Sprintf("/servers/%d", i)
		mux.Handle(prefix+"/debug/pprof/", http.StripPrefix(prefix, proxy(socket)))
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		line(w, http.StatusOK, "/debug/pprof/")
		for i := range sockets {
			fmt.Fprintf(w, "/servers/%d/debug/pprof/\n", i)
		}
	})
	e.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if !isLoopback(strings.Trim(host, "[]")) {
			line(w, http.StatusForbidden, "name a loopback host")
			return
		}
		mux.ServeHTTP(w, r)
	}), profileTimeout)
}

// proxy passes requests on to a unix socket.
func proxy(socket string) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "localhost"}) },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives: true,
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			line(w, http.StatusBadGateway, "the data server does not answer: "+err.Error())
		},
	}
}

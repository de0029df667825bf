package rdmatest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// recorder stands in for the test of a case that is expected to fail.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	first    string // complaint
	cleanups []func()
}

// do runs f as a test: on a goroutine that may be ended, then its cleanups,
// last one first.
func (r *recorder) do(f func()) {
	r.on(f)
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		r.on(last)
	}
}

func (r *recorder) on(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first == "" {
		r.first = s
	}
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first != ""
}

func (r *recorder) Cleanup(f func())             { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Helper()                      {}
func (r *recorder) Log(...any)                   {}
func (r *recorder) Logf(string, ...any)          {}
func (r *recorder) Fail()                        { r.note("failed") }
func (r *recorder) FailNow()                     { r.note("failed"); runtime.Goexit() }
func (r *recorder) Error(args ...any)            { r.note(fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, args ...any) { r.note(fmt.Sprintf(f, args...)) }
func (r *recorder) Fatal(args ...any)            { r.note(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, args ...any) { r.note(fmt.Sprintf(f, args...)); runtime.Goexit() }
func (r *recorder) Skip(...any)                  { runtime.Goexit() }
func (r *recorder) SkipNow()                     { runtime.Goexit() }
func (r *recorder) Skipf(string, ...any)         { runtime.Goexit() }

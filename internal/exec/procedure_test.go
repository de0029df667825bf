package exec

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// TestBodyThatEndsItsGoroutine: the data server does not go on without the goroutine that serves
// its clients, and says which procedure has ended it.
func TestBodyThatEndsItsGoroutine(t *testing.T) {
	const child = "DRTMX_TEST_ENDS_GOROUTINE"
	if os.Getenv(child) != "" {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = callBody(context.Background(), &Procedure{Name: "ends", Body: func(context.Context, *Txn, []byte) ([]byte, error) {
				runtime.Goexit()
				return nil, nil
			}}, nil, nil)
		}()
		<-ended
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), `the body of procedure "ends" has ended its goroutine`) {
		t.Errorf("the process ended with %v:\n%s", err, out)
	}
}

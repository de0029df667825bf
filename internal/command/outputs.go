package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"drtmx/internal/cli"
)

// outputs are the files and sockets of a run.
type outputs struct {
	json       *cli.JSONFile
	live       *live
	hdr        *hdrFiles
	html       *htmlFile
	deliveries *deliveryLog
	telemetry  *telemetry
	bar        runBar
}

// openOutputs opens the files and sockets before the run, so that a bad path or
// address costs nobody a run.
func (a *app) openOutputs(p *runPlan) (o *outputs, err error) {
	o = &outputs{json: &cli.JSONFile{}, live: &live{}, deliveries: &deliveryLog{}, telemetry: &telemetry{stop: func() {}}, bar: a.runBar(p)}
	defer func() {
		if err != nil {
			err = errors.Join(cli.Usage(err), o.close())
		}
	}()
	if o.json, err = cli.OpenJSON(p.json, a.stdout); err != nil {
		return o, err
	}
	if o.live, err = a.openLive(p); err != nil {
		return o, err
	}
	if o.deliveries, err = openDeliveryLog(p.log); err != nil {
		return o, err
	}
	if o.hdr, err = openHDR(p); err != nil {
		return o, err
	}
	if o.hdr.log != nil {
		o.live.observe(defaultEvery, o.hdr.interval)
	}
	if o.html, err = openHTML(p.output.html, &p.pace); err != nil {
		return o, err
	}
	o.html.observe(o.live)
	o.telemetry, err = p.shows.open()
	return o, err
}

// close closes all that was opened.
func (o *outputs) close() error {
	var errs []error
	if o.telemetry != nil {
		errs = append(errs, o.telemetry.close())
	}
	if o.deliveries != nil {
		errs = append(errs, o.deliveries.close())
	}
	errs = append(errs, o.hdr.close(), o.html.close())
	if o.live != nil {
		errs = append(errs, o.live.close())
	}
	if o.json != nil {
		errs = append(errs, o.json.Close())
	}
	return errors.Join(errs...)
}

// deliveryLog is the result file of clause 2.7.2.2, shared by all queues. The
// zero value drops what it is given.
type deliveryLog struct {
	mu sync.Mutex
	f  *os.File
}

// openDeliveryLog makes the file anew.
func openDeliveryLog(path string) (*deliveryLog, error) {
	if path == "" {
		return &deliveryLog{}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("--delivery-log: want a file that can be written: %w", err)
	}
	return &deliveryLog{f: f}, nil
}

// writer returns the log, or nil if there is no file.
func (l *deliveryLog) writer() io.Writer {
	if l == nil || l.f == nil {
		return nil
	}
	return l
}

func (l *deliveryLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(b)
}

func (l *deliveryLog) close() error {
	if l.f == nil {
		return nil
	}
	if err := l.f.Close(); err != nil {
		return fmt.Errorf("--delivery-log: %w", err)
	}
	return nil
}

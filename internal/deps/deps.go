// Package deps pins libraries while the packages that use them are being built.
package deps

import (
	_ "github.com/anishathalye/porcupine"
	_ "github.com/prometheus/client_golang/prometheus"
)

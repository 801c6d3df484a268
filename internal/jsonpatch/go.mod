// This module stands in for gopkg.in/evanphx/json-patch.v4 by a replace directive in
// Larder's go.mod.
module gopkg.in/evanphx/json-patch.v4

go 1.26.0

require github.com/evanphx/json-patch v4.13.0+incompatible

replace github.com/evanphx/json-patch => gopkg.in/evanphx/json-patch.v4 v4.13.0

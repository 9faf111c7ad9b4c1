"""From a posterior to a prediction: rules of integration, and the predictive distribution that they give."""
